# Builds and runs the C programs of tests/c, each linked with all of csrc.
#   VARIANT   plain (default), address (with undefined behaviour), or thread
#   URING     static, shared or shim; default: what the extension was built with
# Strict warnings are errors here and only here: a user's compiler may know more of them than ours.

-include build/uring.mk
VARIANT ?= plain
URING ?= shim
CC ?= cc

FLAGS_plain :=
FLAGS_address := -fsanitize=address,undefined -fno-sanitize-recover=undefined
FLAGS_thread := -fsanitize=thread
MACRO_static := -DKVS_URING_STATIC=1
MACRO_shared := -DKVS_URING_SHARED=1
MACRO_shim := -DKVS_URING_SHIM=1
LIBS_static := -l:liburing.a
LIBS_shared := -luring
# ThreadSanitizer of older compilers cannot place its shadow under full address randomisation.
RUNNER_thread := setarch -R

OUT := build/c/$(VARIANT)-$(URING)
CFLAGS := -std=gnu11 -O2 -g -pthread -Icsrc -Wall -Wextra -Werror -Wconversion \
    -Wmissing-prototypes -Wshadow $(FLAGS_$(VARIANT)) $(MACRO_$(URING))
OBJECTS := $(patsubst %.c,$(OUT)/%.o,$(sort $(shell find csrc -name '*.c' 2>/dev/null)))
TESTS := $(patsubst %.c,$(OUT)/%,$(sort $(wildcard tests/c/test_*.c)))
STRESS := $(patsubst %.c,$(OUT)/%,$(sort $(wildcard tests/c/stress_*.c)))
# Anything else in tests/c is shared by the programs, and so are the checks of the fuzzers.
SHARED := $(patsubst %.c,$(OUT)/%.o,$(sort $(wildcard tests/fuzz/check_*.c) \
    $(filter-out tests/c/test_% tests/c/stress_%,$(wildcard tests/c/*.c))))

# Building is parallel; the programs run one after the other, in one recipe.
MAKEFLAGS += --jobs=$(shell nproc)
RUN = @tools/run_programs.sh "$(VARIANT), $(URING)" "$(RUNNER_$(VARIANT))"

.SECONDARY:
.PHONY: run run-test run-threads
run: $(TESTS) $(STRESS)
	$(RUN) $^
run-test: $(TESTS)
	$(RUN) $^
# What has several threads and a store or an engine under them: the rest is sequential.
run-threads: $(STRESS) $(OUT)/tests/c/test_store
	$(RUN) $^

$(OUT)/%.o: %.c tools/c_programs.mk
	@mkdir -p $(@D)
	@echo "cc $< ($(VARIANT), $(URING))"
	@$(CC) $(CFLAGS) -MMD -MP -c $< -o $@

$(OUT)/tests/c/%: $(OUT)/tests/c/%.o $(OBJECTS) $(SHARED)
	@$(CC) $(CFLAGS) $^ $(LIBS_$(URING)) -lm -o $@

-include $(shell find $(OUT) -name '*.d' 2>/dev/null)
