"""Builds the one extension, kvstore._core, from kvstore/_core.pyx and every C file below csrc/.

Besides listing files it decides one thing: how io_uring is reached. liburing is tried by compiling
and linking a program (never by a version number): its static library first, then the shared one,
else csrc/uring_shim.h, which needs only kernel headers. Exactly one of KVS_URING_STATIC,
KVS_URING_SHARED and KVS_URING_SHIM is defined for the C code. The choice is also written to
build/uring.mk, so that the C tests are built the same way.

Two switches for the build, both from the environment and not seen at run time:
  KVSTORE_URING=auto|static|shared|shim    one kind only, and fail where it cannot be had
  KVSTORE_SANITIZE=address,undefined       compile with these sanitizers (for the tests)
"""

import os
import sys
import tempfile
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError

# Named calls that liburing 2.3 has and older releases lack are what "new enough" means here.
LIBURING_TEST = """
#include <liburing.h>
int main(void)
{
    struct io_uring ring;
    struct io_uring_params params = {0};
    struct io_uring_cqe *cqe;
    struct __kernel_timespec wait = {0};
    if (io_uring_queue_init_params(8, &ring, &params)) return 1;
    if (io_uring_register_buffers(&ring, 0, 0)) return 2;
    if (io_uring_register_ring_fd(&ring) < 0) return 3;
    return io_uring_submit_and_wait_timeout(&ring, &cqe, 1, &wait, 0);
}
"""
KINDS = {
    "static": (LIBURING_TEST, "KVS_URING_STATIC", ["-l:liburing.a"]),
    "shared": (LIBURING_TEST, "KVS_URING_SHARED", ["-luring"]),
    "shim": ("#include <linux/io_uring.h>\nint main(void) { return 0; }", "KVS_URING_SHIM", []),
}
NO_COMPILER = """
kvstore contains C code, and {what}.
On Debian and Ubuntu:  apt-get install gcc libc6-dev python3-dev
A wheel built on another machine of this kind (`make dist`) installs without a compiler.
"""


class BuildCore(build_ext):
    """build_ext that first finds out what this machine's compiler can link."""

    def build_extensions(self):
        if not self._links("int main(void) { return 0; }"):
            sys.exit(NO_COMPILER.format(what="no working C compiler was found (tried `cc`)"))
        if not self._links("#include <Python.h>\nint main(void) { return 0; }"):
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            sys.exit(NO_COMPILER.format(what=f"Python.h of Python {version} is not installed"))
        kind = self._uring_kind()
        _, macro, libraries = KINDS[kind]
        sanitize = [f"-fsanitize={name}" for name in sanitizers()]
        for extension in self.extensions:
            extension.define_macros.append((macro, "1"))
            extension.extra_compile_args += sanitize + (["-g"] if sanitize else [])
            extension.extra_link_args += sanitize + libraries
        Path("build").mkdir(exist_ok=True)
        Path("build/uring.mk").write_text(f"URING := {kind}\n")
        print(f"kvstore: io_uring by {kind}")
        # Macros and sanitizers are not part of what distutils compares, so never reuse an object.
        self.force = True
        super().build_extensions()

    def run(self):
        super().run()
        if not self.inplace:
            # `import kvstore` inside the checkout finds this folder before the installed package.
            self.copy_extensions_to_source()

    def _uring_kind(self):
        wish = os.environ.get("KVSTORE_URING", "auto")
        if wish not in ("auto", *KINDS):
            sys.exit(f"KVSTORE_URING={wish}: must be auto, {', '.join(KINDS)}")
        for kind in KINDS if wish == "auto" else [wish]:
            source, _, libraries = KINDS[kind]
            if self._links(source, libraries):
                return kind
        sys.exit(
            f"kvstore: KVSTORE_URING={wish} cannot be built here. liburing 2.3 or newer comes with "
            "`apt-get install liburing-dev`, the headers for the shim with linux-libc-dev"
        )

    def _links(self, source, libraries=()):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "probe.c")
            path.write_text(source)
            try:
                objects = self.compiler.compile(
                    [str(path)], output_dir="/", extra_postargs=["-std=gnu11", "-w"]
                )
                self.compiler.link_executable(
                    objects, "probe", output_dir=folder, extra_postargs=list(libraries)
                )
            except (CompileError, LinkError):
                return False
            return True


def sanitizers():
    """Names from KVSTORE_SANITIZE; anything else than the two we support is refused."""
    names = [name for name in os.environ.get("KVSTORE_SANITIZE", "").split(",") if name]
    if unknown := set(names) - {"address", "undefined"}:
        sys.exit(f"KVSTORE_SANITIZE: unknown {', '.join(sorted(unknown))}")
    return names


core = Extension(
    "kvstore._core",
    ["kvstore/_core.pyx", *sorted(str(path) for path in Path("csrc").rglob("*.c"))],
    include_dirs=["csrc"],
    depends=sorted(str(path) for path in Path("csrc").rglob("*.h")),
    # Python's own flags turn assert() off (-DNDEBUG); ours stay on: a broken invariant must stop
    # the program before it can write a wrong byte.
    extra_compile_args=[
        "-std=gnu11",
        "-O2",
        "-UNDEBUG",
        "-fvisibility=hidden",
        "-pthread",
        "-Wall",
        "-Wextra",
    ],
    extra_link_args=["-pthread"],
    libraries=["m"],
)
setup(
    ext_modules=cythonize([core], build_dir="build/cython", language_level=3),
    cmdclass={"build_ext": BuildCore},
)
