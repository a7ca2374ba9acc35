"""What stands for the revision of a model that has none. No vLLM is needed."""

import os

from kvstore_vllm.identity import weights_of


def test_a_folder_or_a_file_of_weights_is_told_apart_by_what_it_holds(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    file = folder / "model.gguf"
    for path in (folder, file):
        file.write_bytes(b"first")
        first = weights_of(str(path))
        (folder / "README.md").write_text("not a weight")
        assert weights_of(str(path)) == first
        file.write_bytes(b"first, and more")
        longer = weights_of(str(path))
        os.utime(file, ns=(0, 1))
        assert len({first, longer, weights_of(str(path))}) == 3


def test_a_name_on_a_hub_is_left_to_its_revision():
    assert weights_of("somebody/some-model") == "by revision"
