"""Batches from the loaders of other libraries: the page on streamed data, and what torch holds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import dsgd
from dsgd import array_likes

PAGE = Path(__file__).parents[2] / "docs/how_to/own_problem/streaming.md"
SETUP, *SECTIONS = re.split(r"\n## ", PAGE.read_text())
PACKAGES = {
    "Memory maps": "numpy",
    "PyTorch": "torch",
    "Hugging Face datasets": "datasets",
    "grain": "grain",
    "Arrow and Parquet": "pyarrow",
}


def code(section: str) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", section, re.DOTALL))


EXAMPLES = {
    section.splitlines()[0]: code(section) for section in SECTIONS if "```python" in section
}


@pytest.mark.parametrize("title", EXAMPLES)
def test_the_examples_of_the_page_run_and_learn(title, tmp_path, monkeypatch):
    pytest.importorskip(PACKAGES[title])
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "streaming"}
    exec(compile(code(SETUP) + EXAMPLES[title], title, "exec"), names)
    loss = names["result"].history["loss"]
    assert loss[-1] < 0.2 * loss[0]


@pytest.mark.parametrize("title", EXAMPLES)
def test_each_source_takes_at_most_ten_lines(title):
    for block in EXAMPLES[title].split("result = ")[:-1]:
        lines = [line for line in block.splitlines() if line and "import " not in line]
        assert len(lines) <= 10, block


def test_tensors_are_read_in_their_precision_and_memory_format():
    torch = pytest.importorskip("torch")
    images = torch.arange(120.0).reshape(2, 3, 4, 5)
    for given in (images, images.contiguous(memory_format=torch.channels_last)):
        halved = array_likes.numbers("here", given.bfloat16())
        assert halved.dtype == jnp.bfloat16
        np.testing.assert_array_equal(halved, np.arange(120.0).reshape(2, 3, 4, 5))
        np.testing.assert_array_equal(array_likes.numbers("here", given), images.numpy())
    with pytest.raises(ValueError, match=r"here: got a Tensor .*\.detach\(\)"):
        array_likes.numbers("here", images.bfloat16().requires_grad_())
    batches = dsgd.Batches.stack([[[images, torch.tensor([7, 8])]]] * 2)
    inputs, targets = next(iter(batches))
    assert inputs.shape == (2, 2, 3, 4, 5)
    assert targets.tolist() == [[7, 8]] * 2
