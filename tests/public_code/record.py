"""Runs public implementations of compressors and methods, and records their results.

    python tests/public_code/record.py FOLDER

FOLDER has clones of the repositories of `COMMITS`. The Python needs numpy, scipy, torch and
bitsandbytes, but not this project. The results, with the random numbers that were drawn, are
written to `results.json` next to this file; `test_public_code.py` compares them with ours.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import scipy.sparse
import torch

COMMITS = {
    "sands-lab/grace": "fd3a7f42e71570aa6aecf368a2515388593bfb00",
    "burlachenkok/flpytorch": "23a201b7c0e6788ec84c56d903aa01759a1d69d9",
    "amitport/EDEN-Distributed-Mean-Estimation": "5c7639a6af810e08d21827dd0ed55772b8113e99",
    "IgorSokoloff/3pc_experiments_source_code": "619d1fd5fd6fb9c067b4ed901b01ebe57a8305c1",
}
D = 24
WORKERS, ROUNDS, STEP = 3, 12, 0.1


def main(folder: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(D).astype(np.float32)
    centred = (x - x.mean()).astype(np.float32)
    results = {
        **grace(folder / "grace", x, centred),
        **flpytorch(folder / "flpytorch", x),
        **eden(folder / "EDEN-Distributed-Mean-Estimation", rng),
        **bitsandbytes(x),
        **three_point(folder / "3pc_experiments_source_code/quadratic loss", rng),
    }
    text = json.dumps({"commits": COMMITS, "results": results}, default=_rounded)
    text = text.replace('}, "', '},\n"')
    (Path(__file__).parent / "results.json").write_text(text + "\n")


def grace(folder: Path, x: np.ndarray, centred: np.ndarray) -> dict:
    """Compressors of `grace_dl/dist/compressor`, on one vector or matrix."""
    sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location(
        "grace_dl.dist", folder / "grace_dl/dist/__init__.py"
    )
    package = importlib.util.module_from_spec(spec)
    sys.modules["grace_dl.dist"] = package
    spec.loader.exec_module(package)

    def module(name: str):
        return importlib.import_module(f"grace_dl.dist.compressor.{name}")

    def decoded(compressor, vector):
        return compressor.decompress(*compressor.compress(torch.tensor(vector), "x")).numpy()

    def drawn(compressor, vector):
        """Returns the decoded vector, and the uniform numbers: those of the same seed."""
        torch.manual_seed(1)
        out = decoded(compressor, vector)
        torch.manual_seed(1)
        return {"x": vector, "uniform": torch.empty(vector.size).uniform_().numpy(), "decoded": out}

    one_bit = module("onebit").OneBitCompressor()
    (negative, below, above), _ = one_bit.compress(torch.tensor(x), "x")
    means = {"negative": negative.numpy(), "means": np.array([above.item(), below.item()])}
    results = {
        "top_k": {"x": x, "decoded": decoded(module("topk").TopKCompressor(0.25), x)},
        "one_bit": {"x": x, "decoded": decoded(one_bit, x), **means},
        "sign": {"x": x, "decoded": decoded(module("efsignsgd").EFSignSGDCompressor(1.0), x)},
        "threshold": {"x": x, "decoded": decoded(module("threshold").ThresholdCompressor(0.5), x)},
        "qsgd": drawn(module("qsgd").QSGDCompressor(4, bucket_size=D), x),
        "clipped_ternary": drawn(module("terngrad").TernGradCompressor(), centred),
    }
    torch.distributed.init_process_group(
        "gloo", rank=0, world_size=1, store=torch.distributed.HashStore()
    )
    power, matrix = module("powersgd").PowerSGDCompressor(2, use_memory=True), x.reshape(6, 4)
    decoded(power, matrix)
    last = power.q_memory["x"].numpy().copy()
    results["low_rank"] = {"x": x, "last": last, "decoded": decoded(power, matrix).ravel()}
    return {f"grace {name}": result for name, result in results.items()}


def flpytorch(folder: Path, x: np.ndarray) -> dict:
    """Compressors of `fl_pytorch/utils/compressors.py`. It rounds down if a number in [0, 1) is
    below the probability of the lower value.
    """
    spec = importlib.util.spec_from_file_location(
        "flpytorch_compressors", folder / "fl_pytorch/utils/compressors.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    commands = {
        "natural": "natural",
        "qsgd": "qsgd:4",
        "ternary": "terngrad",
        "qsgd linf": "std.dithering:4",
        "natural_dithering": "nat.dithering:4:2",
        "top_k": "topk:6",
    }
    results = {}
    for name, command in commands.items():
        compressor = module.initCompressor(command, D)
        compressor.generateCompressPattern(np.random.RandomState(2), "cpu", 0, None)
        out = compressor.compressVector(torch.tensor(x)).numpy()
        results[f"flpytorch {name}"] = {"x": x, "decoded": out}
        if hasattr(compressor, "testp"):
            results[f"flpytorch {name}"]["uniform"] = 1 - compressor.testp.numpy()
    return results


def eden(folder: Path, rng: np.random.Generator) -> dict:
    """The quantization of rotated vectors in `torch/eden.py`."""
    sys.path.insert(0, str(folder / "torch"))
    from eden import EdenQuantization

    y = rng.standard_normal(16).astype(np.float32)
    results = {}
    for bits in (1, 2, 3):
        quantization = EdenQuantization(bits)
        out = quantization.backward(*quantization.forward(torch.tensor(y)))[0]
        results[f"eden {bits}"] = {"y": y, "decoded": out.numpy()}
    return results


def bitsandbytes(x: np.ndarray) -> dict:
    """The dynamic codes of 8 bits of bitsandbytes 0.50.2, from PyPI."""
    from bitsandbytes import functional

    padded = torch.tensor(np.resize(x, 256))
    codes, state = functional.quantize_blockwise(padded, blocksize=256)
    out = functional.dequantize_blockwise(codes, state).numpy()[:D]
    return {"bitsandbytes eight_bit": {"x": x, "decoded": out}}


def three_point(folder: Path, rng: np.random.Generator) -> dict:
    """Models after each round of EF21 and 3PCv4 on quadratics, from a first estimate of 0.

    The files are scripts that read data when they are imported; only their functions are executed.
    """
    d = 8
    A = rng.standard_normal((WORKERS, d, d)) / np.sqrt(d)
    A = np.einsum("nij,nkj->nik", A, A) + 0.5 * np.eye(d)
    b = rng.standard_normal((WORKERS, d))
    sparse = [scipy.sparse.csr_matrix(each) for each in A]
    scipy.sparse.csr = scipy.sparse  # an old name of its module
    quadratics = functions(folder / "s_quad_functions_fast.py")
    ef21 = functions(folder / "s_ef21_topk_fg.py", quadratics)["ef21_topk_fg_estimator"]
    v4 = functions(folder / "3PCv4_topk_topk_fg.py", quadratics)["jacqueline_fg_estimator"]

    def iterates(estimator, *k):
        x, g, models = np.zeros(d), np.zeros((WORKERS, d)), []
        for _ in range(ROUNDS):
            g = estimator(sparse, x, b, *k, g, WORKERS)[0]
            x = x - STEP * g.mean(axis=0)
            models.append(x)
        return np.array(models)

    shared = {"A": A, "b": b, "step": STEP}
    return {
        "three_point quadratics": shared,
        "three_point ef21": {"models": iterates(ef21, 2)},
        "three_point v4": {"models": iterates(v4, 1, 2)},
    }


def functions(path: Path, names: dict | None = None) -> dict:
    """Returns the functions that a script defines."""
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    found = {"np": np, "sparse": scipy.sparse, **(names or {})}
    exec(compile(tree, str(path), "exec"), found)
    return found


def _rounded(value: np.ndarray) -> list:
    """Returns all digits of a float32, or of a float64."""
    return [_rounded(row) for row in value] if value.ndim > 1 else [float(str(v)) for v in value]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
