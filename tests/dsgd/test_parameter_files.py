"""Parameters in files of safetensors: names, types, and what is refused."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors import numpy as safetensors

import dsgd


class Layer(NamedTuple):
    kernel: Any
    scale: Any


PARAMS = {
    "Dense_0": {"kernel": jnp.arange(6.0).reshape(2, 3), "bias": jnp.array([7, 8], jnp.bfloat16)},
    "layers": [
        Layer(np.arange(6.0, dtype=np.float32).reshape(3, 2).T, np.int8(5)),
        (jnp.ones(()),),
    ],
}
NAMES = ["Dense_0.bias", "Dense_0.kernel", "layers.0.kernel", "layers.0.scale", "layers.1.0"]


def test_leaves_are_named_by_their_paths_and_keep_values_and_types(tmp_path):
    dsgd.save_safetensors(PARAMS, tmp_path / "new" / "model.safetensors")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["model.safetensors"]
    stored = safetensors.load_file(tmp_path / "new" / "model.safetensors")
    assert sorted(stored) == NAMES
    np.testing.assert_array_equal(stored["layers.0.kernel"], [[0, 2, 4], [1, 3, 5]])
    like = jax.eval_shape(lambda: PARAMS)
    loaded = dsgd.load_safetensors(tmp_path / "new" / "model.safetensors", like)
    assert jax.tree.structure(loaded) == jax.tree.structure(PARAMS)
    for given, expected in zip(jax.tree.leaves(loaded), jax.tree.leaves(PARAMS), strict=True):
        assert given.dtype == expected.dtype
        np.testing.assert_array_equal(given, expected)


class Network(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(2, 3, rngs=rngs), nnx.Linear(3, 1, rngs=rngs)])


def test_modules_states_and_dictionaries_of_nnx_have_the_same_names(tmp_path):
    module, other = Network(nnx.Rngs(1)), Network(nnx.Rngs(2))
    file = tmp_path / "network.safetensors"
    dsgd.save_safetensors(nnx.to_pure_dict(nnx.state(module)), file)
    assert "layers.1.kernel" in safetensors.load_file(file)
    nnx.update(other, dsgd.load_safetensors(file, nnx.state(other)))
    np.testing.assert_array_equal(other.layers[1].kernel[...], module.layers[1].kernel[...])


def test_a_single_array_and_lower_precision(tmp_path):
    file = tmp_path / "x.safetensors"
    dsgd.save_safetensors(jnp.array([1.5, 2], jnp.bfloat16), file)
    assert list(safetensors.load_file(file)) == ["parameters"]
    loaded = dsgd.load_safetensors(file, jax.ShapeDtypeStruct((2,), jnp.float32))
    assert loaded.dtype == np.float32
    assert loaded.tolist() == [1.5, 2]


LIKE = {"a": np.zeros((2, 3), np.float32), "b": np.zeros(4, np.int32)}


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ({"a": LIKE["a"]}, r"has no b; expected a, b"),
        (LIKE | {"c": LIKE["a"], "d": LIKE["a"]}, "has in addition c, d; expected a, b"),
        (LIKE | {"a": np.zeros((3, 2), np.float32)}, r"a is float32\[3, 2\]; expected float32\[2"),
        (LIKE | {"a": np.zeros((2, 3))}, r"a is float64\[2, 3\]; expected float32\[2, 3\]"),
        (LIKE | {"b": np.zeros(4, np.float16)}, r"b is float16\[4\]; expected int32\[4\]"),
        (LIKE | {"b": np.zeros(4, np.int8)}, r"b is int8\[4\]; expected int32\[4\]"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_by_name(stored, words, tmp_path):
    safetensors.save_file(stored, tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match=rf"load_safetensors: .*m\.safetensors:? {words}"):
        dsgd.load_safetensors(tmp_path / "m.safetensors", LIKE)


def test_files_and_leaves_that_are_none_are_refused(tmp_path):
    file = tmp_path / "m.safetensors"
    with pytest.raises(FileNotFoundError, match=r"there is no file .*m\.safetensors"):
        dsgd.load_safetensors(file, LIKE)
    dsgd.save_safetensors(LIKE, file)
    with pytest.raises(ValueError, match="a of `like` is 'float32'; expected an array, or its"):
        dsgd.load_safetensors(file, LIKE | {"a": "float32"})
    file.write_bytes(b"no header")
    with pytest.raises(ValueError, match="is damaged"):
        dsgd.load_safetensors(file, LIKE)
    for params, words in (
        ({"a": {"b": 1.0}, "a.b": 2.0}, r"two leaves are named 'a\.b'"),
        ({"key": jax.random.key(0)}, "params: key: got"),
        ({"name": np.array(["x"])}, "params: name: got text"),
    ):
        with pytest.raises(ValueError, match=words):
            dsgd.save_safetensors(params, file)
    assert file.read_bytes() == b"no header"
