"""Figures 7 to 9 and tables 1 and 2 of Kimad, and its results on Kimad+ in section 4.3: the paper's
numbers and ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table
from scipy import stats

import dsgd
from dsgd import plots
from dsgd.wire import codecs
from experiments.kimad.deep_runs import (
    ANY,
    COARSE,
    COMPUTATION,
    EF21,
    FASTEST,
    KIMAD,
    ORACLE,
    PLUS,
    RESNET_18,
    SLOWEST,
    WHOLE,
    Case,
    Histories,
    Setting,
    fixed_choice,
    pattern,
    step_time,
    traffic,
)
from experiments.shared import figures, statistics, tables

# T_comm: Table 1 / 100, EF21 and Kimad
STEPS = {1.0: (4.861, 3.852), 0.5: (3.606, 2.852), 0.2: (2.842, 2.252), 0.1: (2.580, 2.052)}
# M: Table 2, EF21 and Kimad
TOP_5 = {2: (79.70, 79.34), 4: (79.59, 79.75), 8: (79.23, 78.74), 16: (77.97, 77.97)}
# seconds, with all digits of Table 1: Kimad's column is 100 (1.852 + 2 T_comm)
PAPERS_COMPUTATION = 1.852
PERIODS = 3  # number of periods of the bandwidth in the panels over time
LINES = (plots.STYLES[0], plots.STYLES[4])  # alternating, so that lines below others are visible
LEAST = 1e-5  # relative to the largest compression error; smaller errors are not shown


def times_of(setting: Setting, histories: Histories) -> list[float]:
    """Returns the values of T_comm, largest first."""
    N = setting.problem.workers
    return sorted(
        (case.seconds for case in histories if case.method == EF21 and case.workers == N),
        reverse=True,
    )


def steps(setting: Setting, histories: Histories) -> Table:
    """Tabulates table 1: seconds of a step."""
    N = setting.problem.workers
    table = tables.table(
        f"seconds of a step, {setting.problem.name}, {N} workers, {statistics.runs(setting.seeds)}",
        (
            "T",
            "EF21\npaper",
            "EF21\nours",
            "Kimad\npaper",
            "Kimad\nours",
            "Kimad\noracle",
            "saved\npaper",
            "saved\nours",
            "saved\noracle",
        ),
        "T: T_comm, s. paper: table 1 / 100. oracle: Kimad that knows the bandwidths.\nsaved: % "
        "of EF21's seconds, ± half-width of the 95 % interval over seeds.",
        left=0,
    )
    for seconds in times_of(setting, histories):
        ef21, kimad, oracle = (
            step_time(setting, histories[Case(method, N, seconds)])
            for method in (EF21, KIMAD, ORACLE)
        )
        published = STEPS.get(seconds)
        paper = (
            (
                f"{published[0]:.2f}",
                f"{published[1]:.2f}",
                f"{100 * (1 - published[1] / published[0]):.1f}",
            )
            if published
            else 3 * ("-",)
        )
        ours, adapting, informed = (f"{each.mean():.2f}" for each in (ef21, kimad, oracle))
        saved = (
            statistics.format_with_interval(100 * (1 - each / ef21), 1) for each in (kimad, oracle)
        )
        table.add_row(
            f"{seconds:g}", paper[0], ours, paper[1], adapting, informed, paper[2], *saved
        )
    return table


def messages(setting: Setting, histories: Histories) -> Table:
    """Tabulates the sizes of EF21's messages and their durations, compared with Kimad."""
    N = setting.problem.workers
    table = tables.table(
        "EF21 with as many bits as Kimad",
        (
            "T",
            "K/d",
            "bits\nEF21",
            "bits\noracle",
            "slower\npaper",
            "slower\nours",
            "slower\nexpected",
            "p",
        ),
        "K/d: the fixed ratio. bits: relative to Kimad's.\nslower: seconds of EF21's messages / 2 "
        "T_comm;\nexpected: from the pattern, without noise. p: of equal\nseconds of a step, by a "
        "paired t-test over seeds.",
        left=0,
    )
    for seconds in times_of(setting, histories):
        ef21, kimad, oracle = (
            histories[Case(method, N, seconds)] for method in (EF21, KIMAD, ORACLE)
        )
        sent = traffic(setting, kimad).mean()
        plain, adapting = (step_time(setting, each) for each in (ef21, kimad))
        p = stats.ttest_rel(plain, adapting).pvalue if setting.seeds > 1 else math.nan
        published = STEPS.get(seconds)
        slower = (plain.mean() - COMPUTATION) / (2 * seconds)
        table.add_row(
            f"{seconds:g}",
            f"{ANY[fixed_choice(setting, sent)]:.3f}",
            *(f"{traffic(setting, each).mean() / sent:.3f}" for each in (ef21, oracle)),
            f"{(published[0] - PAPERS_COMPUTATION) / (2 * seconds):.2f}" if published else "-",
            f"{slower:.2f}",
            f"{expected_ratio(seconds):.2f}",
            f"{p:.1g}" if np.isfinite(p) else "-",
        )
    return table


def expected_ratio(seconds: float) -> float:
    r"""Returns the expected seconds of EF21's messages over $2 T_{comm}$, if each message has
    Kimad's mean size and the bandwidth is constant during a step. Because steps follow each other,
    their mean is $1 / E_t[1 / (T_{comp} + 2 c / B(t))]$.
    """
    bandwidth = pattern(1.0, np.arange(10_000) / 10_000)
    sizes = np.minimum(seconds * bandwidth, RESNET_18)
    kimad = COMPUTATION + 2 * sizes / bandwidth
    mean_size = np.sum(sizes / kimad) / np.sum(1 / kimad)
    return float(
        (1 / np.mean(1 / (COMPUTATION + 2 * mean_size / bandwidth)) - COMPUTATION) / (2 * seconds)
    )


def accuracies(setting: Setting, histories: Histories, seconds: float) -> Table:
    """Tabulates table 2: test accuracies."""
    table = tables.table(
        f"test accuracy in %, {setting.problem.name}, T_comm = {seconds:g} s, "
        f"{statistics.runs(setting.seeds)}",
        (
            "M",
            "paper\nEF21",
            "paper\nKimad",
            "top-1\nEF21",
            "top-1\nKimad",
            "top-1\ndifference",
            "top-5\nEF21",
            "top-5\nKimad",
        ),
        "paper: table 2, stated as top-5, CIFAR-10. difference: Kimad - EF21,\ntop-1, ± "
        "half-width of the 95 % interval over seeds. The number of epochs\nis the same: more "
        "workers, fewer steps.",
        left=0,
    )
    for N in sorted({case.workers for case in histories}):
        ef21, kimad = (histories[Case(method, N, seconds)] for method in (EF21, KIMAD))
        cells = [f"{value:.2f}" for value in TOP_5[N]] if N in TOP_5 else ["-", "-"]
        firsts = [100 * history["top_1"][:, -1] for history in (ef21, kimad)]
        cells += [statistics.format_with_error(values) for values in firsts] + [
            statistics.format_with_interval(firsts[1] - firsts[0], 1)
        ]
        cells += [f"{100 * history['top_5'][:, -1].mean():.1f}" for history in (ef21, kimad)]
        table.add_row(str(N), *cells)
    return table


def compression_errors(setting: Setting, histories: Histories, seconds: float) -> Table:
    """Tabulates the compression errors of figure 9, and the accuracies."""
    N = setting.problem.workers
    table = tables.table(
        f"compression errors, T_comm = {seconds:g} s, {N} workers",
        ("method", "error", "r", "bits", "step", "top-1", "more"),
        "error: mean over rounds and workers of |decoded - original|^2, relative to\nKimad's. r: "
        "rank correlation with the bandwidth. bits: of a message, relative\nto the model's. step: "
        "seconds. more: top-1 minus EF21's. ±: half-width of the\n95 % interval over seeds, for "
        "top-1 the standard error.\ncoarse: Kimad with Kimad+'s 50 ratios.",
    )
    means = mean_errors(setting, histories, seconds)
    for method in means:
        history = histories[Case(method, N, seconds)]
        top_1 = 100 * history["top_1"][:, -1]
        more = top_1 - 100 * histories[Case(EF21, N, seconds)]["top_1"][:, -1]
        table.add_row(
            method,
            "1.00"
            if method == KIMAD
            else statistics.format_with_interval(divide(means[method], means[KIMAD])),
            f"{correlation(setting, history):.2f}",
            f"{traffic(setting, history).mean() / (2 * setting.bits):.1%}",
            f"{step_time(setting, history).mean():.2f}",
            statistics.format_with_error(top_1),
            "-" if method == EF21 else statistics.format_with_interval(more, 1),
        )
    return table


def divide(errors: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Returns the ratios of mean errors, `[seeds]`; NaN if all messages are the whole model."""
    return np.divide(errors, others, out=np.full_like(errors, np.nan), where=others > 0)


def mean_errors(setting: Setting, histories: Histories, seconds: float) -> dict[str, np.ndarray]:
    """Returns the mean error of each method's messages after the warm-up, over rounds and workers,
    `[seeds]`.
    """
    of = {
        method: histories[Case(method, setting.problem.workers, seconds)]
        for method in (EF21, KIMAD, COARSE, PLUS, WHOLE)
    }
    return {
        method: history["mean_error"][:, setting.warm_up + 1 :].mean(axis=1)
        for method, history in of.items()
    }


def correlation(setting: Setting, history: dict[str, np.ndarray]) -> float:
    """Returns the rank correlation of a worker's bandwidths and compression errors after the
    warm-up, averaged over seeds.
    """
    series = [history[name][:, setting.warm_up + 1 :] for name in ("bandwidth", "error")]
    ranks = (stats.rankdata(values, axis=1) for values in series)
    # if all messages are the whole model, there are no errors, and the correlation is not defined
    with np.errstate(invalid="ignore"):
        each = [np.corrcoef(*pair)[0, 1] for pair in zip(*ranks, strict=True)]
    return float(np.mean(each))


def notes(setting: Setting, histories: Histories, seconds: float) -> list[str]:
    """Explains the differences between our results and the paper's."""
    N = setting.problem.workers
    bandwidth = pattern(1.0, np.arange(10_000) / 10_000)
    most = float(bandwidth.mean() * (1 / bandwidth).mean())
    beyond = [
        f"{time:g}"
        for time, (ef21, _) in STEPS.items()
        if (ef21 - PAPERS_COMPUTATION) / (2 * time) > most
    ]
    layered, whole = place_bits(setting.layers), codecs.index_bits(sum(setting.layers))
    ef21, plus = (histories[Case(method, N, seconds)]["top_1"][:, -1] for method in (EF21, PLUS))
    errors = mean_errors(setting, histories, seconds)
    gain = 100 * (plus - ef21)
    significant = abs(gain.mean()) > statistics.half_interval(gain)
    surely = (
        ("significant" if significant else "not significant") + " at 5 %"
        if setting.seeds > 1
        else "one seed"
    )
    smaller, better = (
        divide(errors[method], errors[other]).mean()
        for method, other in ((EF21, KIMAD), (PLUS, WHOLE))
    )
    return [
        f"T_comp is {COMPUTATION:.2f} s, the model's bits over the mean of {SLOWEST / 1e6:g} to "
        f"{FASTEST / 1e6:g} Mbit/s. The paper's table 1 has exactly 100 ({PAPERS_COMPUTATION} + 2 "
        "T_comm) s for Kimad: about 100 steps, not one, at a mean of "
        f"{RESNET_18 / PAPERS_COMPUTATION / 1e6:.0f} Mbit/s, with a Kimad that knows the "
        "bandwidths.",
        "The paper saves 20 % at every T_comm. Computation takes the same time for both; with the "
        f"same number of bits, EF21's messages take at most mean(B) mean(1/B) = {most:.2f} times "
        "Kimad's seconds, apart from noise. The paper's take longer at T_comm = "
        f"{', '.join(beyond)} s.",
        "The paper's top-5 accuracy of 80 % with 10 classes, for which guessing has 50 %, is "
        "probably a top-1 accuracy.",
        "The accuracy of Kimad+ differs from EF21's by "
        f"{statistics.format_with_interval(gain, 1)} % (paper: 1 %): {surely}.",
        f"EF21's mean error is {smaller:.2f} times Kimad's with the same number of bits: Kimad's "
        "error is large when the bandwidth is small.",
        f"An index takes {whole} bits in the whole model and {layered:.1f} in a layer. With the "
        "same number of bits the whole model therefore sends "
        f"{1 - (32 + layered) / (32 + whole):.1%} fewer elements, but the ratios of its layers "
        f"may differ. The error of Kimad+ is {better:.2f} times the whole model's, which would be "
        "optimal if indices took no bits.",
    ]


def place_bits(layers: tuple[int, ...]) -> float:
    """Returns the bits of an element's index in its layer, averaged over the model."""
    return sum(d * codecs.index_bits(d) for d in layers) / sum(layers)


def draw(
    setting: Setting, histories: Histories, seconds: float, period: float, noise: float
) -> Figure:
    """Draws messages, losses and compression errors over time, and the seconds of a step."""
    N = setting.problem.workers
    times = times_of(setting, histories)
    sheet, (sizes, losses, errors, steps) = plots.figure(
        2, 2, width=figures.WIDTH / 2, height=3.8, sharey=False
    )
    of = {method: histories[Case(method, N, seconds)] for method in (EF21, KIMAD, PLUS, WHOLE)}

    by_time = {f"T_comm = {time:g} s": histories[Case(KIMAD, N, time)] for time in times}
    draw_over_time(sizes, setting, by_time, "message", 100 / setting.bits, period)
    sizes.axhline(100, color="0.4", linewidth=0.8)
    sizes.set(ylabel="message, % of the model's bits", ylim=(0, 115))
    sizes.set_title("Kimad's messages of one worker (figure 7)")

    lines = {}
    for name in (EF21, KIMAD, PLUS):
        history = dsgd.history.evaluated_records(of[name])
        lines[name] = history["clock"].mean(axis=0), history["loss"]
    title = f"T_comm = {seconds:g} s (figure 8)"
    figures.curves(lines, xlabel="simulated seconds", ylabel="loss f(x)", title=title)(losses)
    losses.legend(frameon=False, fontsize=9)

    draw_over_time(errors, setting, of, "error", 1, period)
    most = max(history["error"][0, setting.warm_up + 1 :].max() for history in of.values()) or 1.0
    title = f"One worker, T_comm = {seconds:g} s (figure 9)"
    figures.describe(errors, None, "error |decoded - original|²", title, log="y")
    errors.set_ylim(LEAST * most, 2 * most)

    draw_steps(steps, setting, histories, times)
    what = f"{setting.problem.name}, {N} workers, one period in {period:g} s, noise {noise:g}"
    figures.title(sheet, f"{what}; {statistics.errors('bands and bars', setting.seeds)}")
    return sheet


def draw_over_time(
    axes: Axes,
    setting: Setting,
    histories: Mapping[str, dict[str, np.ndarray]],
    name: str,
    factor: float,
    period: float,
) -> None:
    """Draws the first seed's series after the warm-up as one line per history, and the bandwidth
    without noise as a dashed line.
    """
    began, last = next(iter(histories.values()))["clock"][0, setting.warm_up], 0.0
    for i, (label, history) in enumerate(histories.items()):
        begins = history["clock"][0, :-1] - began
        rounds = np.flatnonzero((begins >= 0) & (begins <= PERIODS * period))
        values = factor * history[name][0, rounds + 1]
        look = {**figures.look(i), "linestyle": LINES[i % 2], "linewidth": 1.4}
        axes.plot(begins[rounds], np.where(values > 0, values, np.nan), label=label, **look)
        last = max(last, begins[rounds[-1]])
    x = np.linspace(0, last, 500)
    axes.set_xlabel("simulated seconds after the warm-up")
    beside = axes.twinx()
    look = {"color": "0.55", "linestyle": "--", "linewidth": 1.0, "label": "bandwidth"}
    beside.plot(x, pattern(period, began + x) / 1e6, **look)
    beside.set(ylabel="bandwidth to a ResNet-18, Mbit/s", ylim=(0, 380))
    beside.spines["top"].set_visible(False)
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16), "ncols": 2}
    lines = [*axes.get_lines(), *beside.get_lines()]
    axes.legend(handles=lines, frameon=False, fontsize=9, **place)


def draw_steps(axes: Axes, setting: Setting, histories: Histories, times: Sequence[float]) -> None:
    """Draws table 1: seconds of a step, ours and the paper's."""
    N, published = setting.problem.workers, [time for time in times if time in STEPS]
    for i, method in enumerate((EF21, KIMAD, ORACLE)):
        each = [step_time(setting, histories[Case(method, N, time)]) for time in times]
        middle, error = dsgd.history.mean_and_error(np.stack(each, axis=1))
        look = figures.look(i, marker="o", markersize=4, label=method)
        if method == ORACLE:
            look["color"] = plots.COLOURS[4]
        axes.errorbar(times, middle, error, **look)
    for i, method in enumerate((EF21, KIMAD)):
        look = {"markersize": 7, "fillstyle": "none", "color": plots.COLOURS[i]}
        axes.plot(
            published, [STEPS[time][i] for time in published], "s", label=f"{method}, paper", **look
        )
    axes.axhline(COMPUTATION, color="0.4", linewidth=0.8)
    title = "Table 1; grey: T_comp"
    figures.describe(axes, "T_comm, seconds", "seconds of a step", title, log="xy", legend=True)
