"""Suggestions for names of arguments and attributes that do not exist; attributes that are
imported at their first use.
"""

from __future__ import annotations

import difflib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import lazy_loader

SYNONYMS: dict[str, Sequence[str]] = {
    **dict.fromkeys(("H", "K", "local_steps", "local_epochs", "num_local_steps"), ("period",)),
    "tau": ("period", "delay"),
    **dict.fromkeys(
        ("eta", "gamma", "learning_rate", "lr", "step_size", "stepsize"),
        ("optimizer", "step_size", "learning_rate"),
    ),
    **dict.fromkeys(("seed", "rng", "prng_key", "random_state"), ("key", "seed")),
    **dict.fromkeys(
        ("N", "clients", "n_agents", "n_nodes", "n_workers", "num_clients", "num_workers", "nodes"),
        ("workers", "n"),
    ),
    **dict.fromkeys(
        ("T", "epochs", "iterations", "max_iter", "num_rounds", "num_steps", "rounds"),
        ("steps", "step"),
    ),
    **dict.fromkeys(("B", "batch", "minibatch_size"), ("batch_size",)),
    **dict.fromkeys(("callback", "callbacks", "log", "loggers", "on_step"), ("on_record",)),
    **dict.fromkeys(("eval_every", "log_every"), ("record_every", "evaluate_every")),
    **dict.fromkeys(("W", "graph", "mixing_matrix"), ("topology", "W")),
    **dict.fromkeys(("compression", "quantizer"), ("compressor", "up")),
    **dict.fromkeys(("density", "ratio", "share"), ("fraction", "probability")),
    **dict.fromkeys(("lam", "regularization", "weight_decay"), ("l2", "penalty")),
    **dict.fromkeys(("fit_intercept", "intercept"), ("bias",)),
    **dict.fromkeys(("least_squares", "ridge"), ("random_linear_regression",)),
    "binary_classification": ("binary_logistic_regression",),
    "bits": ("levels",),
    "buffer_size": ("buffer",),
    **dict.fromkeys(
        ("async_local_sgd", "asynchronous_local_sgd"), ("asynchronous_diloco", "fed_buff")
    ),
    **dict.fromkeys(("grid_search", "search", "tuning"), ("tune", "sweep")),
    "dataset": ("data",),
    "eigenvalues": ("spectrum",),
    "xscale": ("logx",),
    "yscale": ("logy",),
    **dict.fromkeys(("grad_norm", "gradient_norm"), ("grad_sqnorm",)),
    **dict.fromkeys(("acc", "accuracy"), ("test_accuracy",)),
    **dict.fromkeys(("seconds", "time"), ("clock",)),
    **dict.fromkeys(("all_to_all", "clique", "full", "fully_connected"), ("complete",)),
    **dict.fromkeys(("line", "path"), ("chain",)),
    "cycle": ("ring",),
    **dict.fromkeys(("matrix", "numpy", "toarray", "todense"), ("W",)),
    **dict.fromkeys(("neighbors", "neighbours"), ("links",)),
    **dict.fromkeys(("gap", "lambda2", "lambda_2", "second_eigenvalue"), ("spectral_gap", "rho")),
    **dict.fromkeys(("adjacency", "edge_list"), ("edges",)),
    **dict.fromkeys(("bandwidth", "bandwidths"), ("up",)),
    **dict.fromkeys(("by_class", "label", "non-iid", "noniid", "sorted"), ("by-label",)),
    **dict.fromkeys(("random", "uniform"), ("iid",)),
    **dict.fromkeys(("pathological", "label-skew"), ("classes", "shards")),
    **dict.fromkeys(("quantity-skew", "unbalanced", "by-size"), ("dirichlet-sizes",)),
    **dict.fromkeys(("beta", "concentration"), ("alpha",)),
    **dict.fromkeys(("classes_per_client", "num_classes_per_client"), ("classes",)),
    **dict.fromkeys(("num_shards", "shards_per_client"), ("shards",)),
    **dict.fromkeys(("qffl", "q_ffl", "qfedsgd"), ("q_fed_avg",)),
    **dict.fromkeys(("mu", "lambda_", "proximal_mu"), ("penalty",)),
    **dict.fromkeys(("base_layers", "head", "personal_layers"), ("local",)),
    **dict.fromkeys(("head_epochs", "num_head_epochs", "plocal_epochs"), ("head_steps",)),
    **dict.fromkeys(("mixing_parameter", "mixing_weight"), ("mixture",)),
    **dict.fromkeys(("powd", "pow_d", "highest_loss", "loss_based"), ("power_of_choice",)),
    **dict.fromkeys(
        ("clients_per_round", "cohort_size", "num_sampled", "sample_size", "sampled_clients"),
        ("k", "m"),
    ),
    **dict.fromkeys(
        (
            "choice",
            "random_selection",
            "uniform_sampler",
            "uniform_sampling",
            "without_replacement",
        ),
        ("sampled",),
    ),
    **dict.fromkeys(("by_size", "proportional", "pps"), ("systematic",)),
    **dict.fromkeys(("poisson", "poisson_sampling"), ("bernoulli", "poisson_intervals")),
    **dict.fromkeys(("fixed_order", "sequential", "turns"), ("round_robin",)),
    **dict.fromkeys(("availability", "two_state"), ("markov",)),
    **dict.fromkeys(("elastic", "churn", "join", "leave", "failures"), ("lifetimes",)),
    **dict.fromkeys(("gilbert_elliott", "burst_losses", "packet_loss"), ("bursts",)),
    **dict.fromkeys(("gaussian_noise", "noisy_messages", "awgn", "snr"), ("MessageNoise",)),
    **dict.fromkeys(("daily", "diurnal", "time_of_day"), ("square_wave",)),
    "periodic": ("cyclic",),
    **dict.fromkeys(("natural", "by-user", "user"), ("by_user",)),
    **dict.fromkeys(("leaf", "load_leaf", "femnist"), ("read_clients",)),
    **dict.fromkeys(("fairness", "per_client_metrics"), ("client_metrics", "with_client_metrics")),
    **dict.fromkeys(("train_test_split", "split_clients"), ("hold_out",)),
}
"""Terms of papers and other libraries, with the names that this project has for them. A message
about an unknown name suggests those that exist in its place."""


def suggest(
    given: str, known: Iterable[str], synonyms: Mapping[str, Sequence[str]] = SYNONYMS
) -> str:
    """Returns the end of an error message about an unknown name.

    Args:
        given: the name.
        known: the names that exist.
        synonyms: names to suggest in place of a name, if they exist.

    Returns:
        "; did you mean x?" with the synonyms of the name, or else the most similar name, or else
        those that begin with it; "" if there are none.
    """
    exact = list(known)
    meant = synonyms.get(given, synonyms.get(given.casefold(), ()))
    close = [name for name in meant if name in exact]
    if not close:
        folded = {name.casefold(): name for name in exact}
        start = given.casefold()
        similar = difflib.get_close_matches(start, folded, 1)
        begin = [name for name in folded if start and name.startswith(start)]
        close = [folded[name] for name in similar or begin]
    return f"; did you mean {' or '.join(close)}?" if close else ""


def missing(
    package: str,
    name: str,
    known: Iterable[str],
    synonyms: Callable[[], Mapping[str, Sequence[str]]] = lambda: SYNONYMS,
) -> AttributeError:
    """Returns the error about an attribute that a package does not have.

    Args:
        package: its name.
        name: the attribute.
        known: the package's public names.
        synonyms: returns those of `suggest`.
    """
    # `from package import name` asks for the attribute before it imports a module.
    silent = name.startswith("_") or importlib.util.find_spec(f"{package}.{name}")
    end = "" if silent else suggest(name, known, synonyms())
    return AttributeError(f"module {package!r} has no attribute {name!r}{end}")


def add_suggestions(package: str) -> None:
    """Adds a `__getattr__` to a package, which suggests one of its public names. Type checkers do
    not see it, and report unknown attributes.
    """
    module: Any = sys.modules[package]

    def fail(name: str) -> NoReturn:
        raise missing(package, name, module.__all__)

    module.__getattr__ = fail


def attach(
    package: str,
    file: str,
    synonyms: Callable[[], Mapping[str, Sequence[str]]] = lambda: SYNONYMS,
) -> tuple[Callable[[str], Any], Callable[[], list[str]], Any]:
    """Returns the `__getattr__`, `__dir__` and `__all__` of a package that imports each of its
    public names at the first use. The stub next to the file, `__init__.pyi`, has the imports.

    Args:
        package: its name.
        file: its file.
        synonyms: see `missing`.
    """
    load, names, public = lazy_loader.attach_stub(package, file)

    def find(name: str) -> Any:
        if name in public:
            return load(name)
        raise missing(package, name, public, synonyms)

    return find, names, public
