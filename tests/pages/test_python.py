"""Python code in pages and docstrings runs, with one embedded default and a few images."""

import doctest
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

import superdl
from superdl.sampler.embedded.embedded import release_all
from tests.fixtures.images import write_images
from tests.fixtures.torchvision import torchvision_transforms
from tests.pages.markdown import PAGES, ROOT, blocks_of, here

PUBLIC = {name: getattr(superdl, name) for name in superdl.__all__}
ELSEWHERE = {"docs/frameworks.md"}  # tests/integration trains by it: test_lightning.py and its siblings
IMAGES = 300  # more than the batch of the pages
# What a page takes for granted. README and tutorial take nothing.
GIVEN = {
    "docs/data.md": """
import torch
device, images, source = "cpu", torch.zeros(2, 224, 224, 3, dtype=torch.uint8).permute(0, 3, 1, 2), "images"
from superdl import PerSample
from torchvision.transforms import CenterCrop, Compose, Normalize, ToTensor
pipeline = Compose([CenterCrop(24), ToTensor(), Normalize((0.5,) * 3, (0.5,) * 3)])
""",
    "docs/reference.md": "from superdl import Recipe",
    "docs/coming-from.md": """
import os
import numpy, torch
from superdl.main import main
assert main(["index", os.path.abspath("bucket/train"), "-o", "train.jsonl", "--labels", "folder"]) == 0
preprocess = numpy.asarray
model, resuming, saved = torch.nn.Linear(2, 2), False, []
save = saved.append
""",
    "docs/store.md": "from superdl import Recipe, SuperDataset\nrecipe = Recipe.image(resize=32, crop=32)",
}
PYTHON = {
    page.relative_to(ROOT).as_posix(): blocks
    for page in PAGES
    if (blocks := [block for block in blocks_of(page) if block.language == "python"])
}


@pytest.fixture(scope="module")
def names():
    """Names that examples use, in a folder with eight ``images`` of four classes, a ``bucket``, a demo's."""
    folder, patch = Path(tempfile.mkdtemp(prefix="super-x-")), pytest.MonkeyPatch()
    for place in ("images", "bucket/train", "bucket/val", "data/demo/train"):
        write_images(folder / place, 8)
    patch.chdir(folder)
    patch.setattr(tempfile, "tempdir", str(folder))  # short: socket paths have 107 bytes
    patch.setenv("TMPDIR", str(folder))
    patch.setenv("SUPER_CACHE_BYTES", "64mb")
    for name in [name for name in os.environ if name.startswith("SUPER_COORDINATOR")]:
        patch.delenv(name)
    yield PUBLIC | {"DataLoader": DataLoader}
    release_all()
    patch.undo()
    shutil.rmtree(folder)


def _needs_torchvision(code):
    if "from torchvision" in code and torchvision_transforms() is None:
        pytest.skip("torchvision is not installed")


@pytest.mark.parametrize("name", PUBLIC)
def test_the_example_of_a_docstring_is_true(names, name):
    _needs_torchvision(str(PUBLIC[name].__doc__))
    example = doctest.DocTestParser().get_doctest(PUBLIC[name].__doc__, dict(names), name, None, 0)
    assert example.examples, "a public name's docstring shows how it is used"
    printed = []
    failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=printed.append)
    assert not failed, "".join(printed)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 calls it
@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
@pytest.mark.parametrize("page", [page for page in PYTHON if page not in ELSEWHERE])
def test_the_code_of_a_page_runs_and_its_dataset_reads(names, page):
    _needs_torchvision(GIVEN.get(page, ""))
    given = {"__name__": "my_steps"}
    exec(GIVEN.get(page, ""), given)  # noqa: S102  # ours
    for block in PYTHON[page]:
        code = "\n" * block.line + here(block.text, Path("bucket").absolute())
        exec(compile(code, page, "exec"), given)  # noqa: S102  # our own page
        if "SuperDataset(" in code and "key_list" not in code:
            labels = next(iter(superdl.SuperLoader(given["dataset"], batch_size=8)))[1]
            assert sorted(labels.tolist()) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_the_readmes_snippet_trains_when_it_is_pasted(names):
    write_images(Path("many/data/demo/train"), IMAGES)
    (block,) = PYTHON["README.md"]
    read = "print(images.dtype, *images.shape, images.stride()[1], labels.dtype, *labels.shape)"
    Path("many/pasted.py").write_text(block.text.replace("...", read))
    done = subprocess.run(
        [sys.executable, "pasted.py"], cwd="many", capture_output=True, text=True, check=False
    )
    batches = [f"torch.uint8 {count} 3 224 224 1 torch.int64 {count}" for count in (256, IMAGES - 256)]
    assert done.stdout.splitlines() == 3 * batches, done.stderr
