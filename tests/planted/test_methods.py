"""Mistakes in methods: their equations, their events, their exchanges, their validation, and their
actors on Ray.
"""

from __future__ import annotations

from planted import mistakes
from planted.mistakes import Mistake


def history(case: str) -> str:
    """Returns the test of a recorded history."""
    return of("algorithms/test_reference_histories", f"a_history_is_the_recorded_one[{case}]")


def of(file: str, test: str) -> str:
    return f'"tests/{file}.py::test_{test}"'


ASYNCHRONOUS, COMPRESSED, DECENTRALIZED = (
    f"algorithms/test_{kind}_methods" for kind in ("asynchronous", "compressed", "decentralized")
)
MATRICES = "algorithms/test_matrices"
CONTINUES = "a_method_continues_with_the_workers_that_participate"
ON_RAY, OPTIMIZERS, PARTICIPATION = (
    "algorithms/test_on_ray",
    "algorithms/test_optimizers",
    "algorithms/test_participation",
)
SERVER, GOSSIP = (
    "algorithms/asynchronous/asynchronous_server.py",
    "algorithms/asynchronous/asynchronous_gossip_sgd.py",
)

CHANGES = "algorithms/test_compressed_changes"
BITS, PROXIMAL = "algorithms/test_bits", "algorithms/test_proximal_methods"
ONE_BIT = "algorithms/test_one_bit_methods"
GOSSIP_OF_DIFFERENCES = "algorithms/test_compressed_gossip"
DIFFERENCES = "algorithms/test_compressed_differences"
LOCAL = "algorithms/test_local_updates"
LOCAL_GOSSIP = "algorithms/test_local_gossip"
SLOW_LINKS = "algorithms/test_slow_links"
STARTS = "algorithms/test_with_starts"
STATEMENTS = "theory_checks/test_statements"
VARIANCE_REDUCTION = "algorithms/test_variance_reduction"
WEIGHTS = "dsgd/problems/test_weights"

MISTAKES = [
    # Equations.
    Mistake(
        "algorithms/compressed/marina.py",
        "g + N / r * mean",
        "g + mean",
        of(STATEMENTS, "statement_holds[PP-MARINA, every round]"),
    ),
    Mistake(
        "algorithms/compressed/marina.py",
        "Query(x.last, active=~new)",
        "Query(x.params, active=~new)",
        of(STATEMENTS, "statement_holds[VR-MARINA, every round]"),
    ),
    Mistake(
        "algorithms/compressed/marina.py",
        "Parts(whole, optax.tree.sub(whole, state.workers), whole)",
        "Parts(whole, whole, whole)",
        of(DIFFERENCES, "two_methods_are_the_same[MARINA, identity = GD, (0.1, 0.0, 0.3)]"),
    ),
    Mistake(
        "algorithms/compressed/three_point.py",
        "optax.tree.where(round.step == 0, g, y)",
        "y",
        of(STATEMENTS, "statement_holds[LAG, every round]"),
    ),
    Mistake(
        "algorithms/compressed/three_point.py",
        "(share * change)",
        "change",
        of(PARTICIPATION, "a_method_continues_with_the_workers_that_participate[clag]"),
    ),
    Mistake(
        "algorithms/compressed/three_points.py",
        "lazy = threshold * workers.sqnorm_rows(optax.tree.sub(x, y))",
        "lazy = threshold * workers.sqnorm_rows(x)",
        of(STATEMENTS, "statement_holds[CLAG, every round]"),
    ),
    Mistake(
        "algorithms/compressed/three_points.py",
        "return probability, (1 - probability) * omega(d)",
        "return probability, (1 - probability) ** 2 * omega(d)",
        of(DIFFERENCES, "constants_bound_the_error[v5]"),
    ),
    Mistake(
        "dsgd/communication/compressed.py",
        "jnp.where(senders[:, None], each, jnp.uint32(0))",
        "each",
        of(STATEMENTS, "statement_holds[LAG, every round]"),
    ),
    Mistake(
        "algorithms/variance_reduction.py",
        "known = known.at[np.arange(round.workers), s[:, -1]].set(True)",
        "known = known | True",
        of(VARIANCE_REDUCTION, "saga_follows_its_recursion[1]"),
    ),
    Mistake(
        "algorithms/variance_reduction.py",
        "return coin | (round.step == 0)",
        "return coin",
        of(VARIANCE_REDUCTION, "the_first_round_is_that_of_gradient_descent[page]"),
    ),
    Mistake(
        "algorithms/compressed/votes.py",
        "negative = x < 0",
        "negative = x <= 0",
        of(ONE_BIT, "votes_lead_to_the_lower_median_of_the_minimizers"),
    ),
    Mistake(
        "algorithms/compressed/majority_vote.py",
        "delta), moved(beta2,",
        "delta), moved(beta1,",
        of(ONE_BIT, "equal_workers_make_the_steps_of_lion"),
    ),
    Mistake(
        "algorithms/compressed/tern_grad.py",
        "jnp.max, round.all_gather(largest)",
        "jnp.mean, round.all_gather(largest)",
        of(ONE_BIT, "terngrad_is_unbiased_after_clipping_with_the_stated_variance[None]"),
    ),
    Mistake(
        "algorithms/compressed/compensation.py",
        "(sent.decoded, answer.decoded)",
        "(sent.decoded, s)",
        of(ONE_BIT, "no_part_of_a_momentum_is_lost"),
    ),
    Mistake(
        "algorithms/compressed/one_bit_adam.py",
        "0 * x.total",
        "x.total",
        of("theory_checks/test_statements", "statement_holds[0/1 Adam, every round]"),
    ),
    Mistake(
        "algorithms/local_updates/streaming_diloco.py",
        "offset = (p + 1) * period",
        "offset = p * period",
        of("theory_checks/test_statements", "statement_holds[Streaming DiLoCo, every round]"),
    ),
    Mistake(
        "algorithms/local_updates/outer.py",
        "optax.tree.sub(total, sent.decoded)",
        "total",
        of(SLOW_LINKS, "two_methods_are_the_same[SparseLoCo of all elements]"),
    ),
    Mistake(
        "algorithms/local_updates/outer.py",
        "workers.where_delivered(optax.tree.sub(total, sent.decoded), y.memory)",
        "optax.tree.sub(total, sent.decoded)",
        of(PARTICIPATION, "a_method_continues_with_the_workers_that_participate[fed_ef]"),
    ),
    Mistake(
        "algorithms/local_updates/sparse_loco.py",
        "optax.sgd(1.0), 1.0)",
        "optax.sgd(1.0), 0.95)",
        of(CHANGES, "two_methods_are_the_same[Qsparse-local-SGD, H = 1]"),
    ),
    Mistake(
        "algorithms/local_updates/fed_paq.py",
        "if not compressor.unbiased:",
        "if compressor.omega == ():",
        of(CHANGES, "an_invalid_argument_is_refused[biased]"),
    ),
    Mistake(
        "algorithms/local_updates/fed_paq.py",
        "(q - mean[None])",
        "q",
        of(STATEMENTS, "statement_holds[FedCOMGATE, every round]"),
    ),
    Mistake(
        "algorithms/local_updates/cser.py",
        "e = optax.tree.add(e, p)",
        "e = p",
        of(CHANGES, "two_methods_are_the_same[CSER, no messages between resets]"),
    ),
    Mistake(
        "algorithms/compressed/dgc.py",
        "jnp.where(c == 0, u, 0)",
        "u",
        of(CHANGES, "two_methods_are_the_same[DGC of all elements]"),
    ),
    Mistake(
        "algorithms/compressed/dgc.py",
        "clip / round.workers**0.5",
        "clip",
        of(STATEMENTS, "statement_holds[DGC, every round]"),
    ),
    Mistake(
        "algorithms/local_updates/delayed_diloco.py",
        "mean[None] - own",
        "mean[None]",
        of("theory_checks/test_statements", "statement_holds[DiLoCo, eager, every round]"),
    ),
    Mistake(
        "algorithms/local_updates/delayed_diloco.py",
        "jnp.asarray(weights), N",
        "jnp.ones(N), N",
        of(WEIGHTS, "an_eager_workers_part_of_the_mean_has_its_weight[float32]"),
    ),
    Mistake(
        "algorithms/local_updates/noloco.py",
        "consensus * (mixed - slow)",
        "consensus * mixed",
        of(SLOW_LINKS, "two_methods_are_the_same[NoLoCo of full steps]"),
    ),
    Mistake(
        "algorithms/local_updates/sparta.py",
        "ends[:-1], ends[1:]",
        "ends[:-1], ends[1:] - 1",
        of(SLOW_LINKS, "sparta_draws_other_elements_in_each_round"),
    ),
    Mistake(
        "dsgd/engine/clock.py",
        "begin, ends, due = jnp.maximum(done, jnp.max(pending.done, axis=0)), [], []",
        "begin, ends, due = done, [], []",
        of(SLOW_LINKS, "messages_of_a_fragment_are_sent_while_the_workers_compute"),
    ),
    Mistake(
        "algorithms/local_updates/fed_avg.py",
        "jnp.asarray(proximal, g.dtype) * (y - x[None])",
        "jnp.asarray(proximal, g.dtype) * y",
        of(LOCAL, "the_outer_step_does_not_change_the_limit[FedProx]"),
    ),
    Mistake(
        "algorithms/local_updates/fed_nova.py",
        "effective / share**2",
        "effective / share",
        of(STATEMENTS, "statement_holds[FedNova, every round]"),
    ),
    Mistake(
        "algorithms/local_updates/fed_dyn.py",
        "mean / share + h / regularization",
        "mean + h / regularization",
        of(PARTICIPATION, "a_method_continues_with_the_workers_that_participate[fed_dyn]"),
    ),
    Mistake(
        "algorithms/local_updates/mime.py",
        "g - g_x + c[None]",
        "g + c[None]",
        of(STATEMENTS, "statement_holds[Mime, every round]"),
    ),
    Mistake(
        "algorithms/local_updates/mime.py",
        "y.memory.known & ~at_start",
        "y.memory.known",
        of(PARTICIPATION, "a_method_continues_with_the_workers_that_participate[mime_lite]"),
    ),
    Mistake(
        "algorithms/local_updates/scaffnew.py",
        "probability / gamma * (mean - hat)",
        "1 / gamma * (mean - hat)",
        of(STATEMENTS, "statement_holds[Scaffnew, every round]"),
    ),
    Mistake(
        "algorithms/decentralized/nids.py",
        "units.scaled(c * steps, correction)",
        "units.scaled(c * steps[::-1], correction)",
        of(STATEMENTS, "statement_holds[NIDS, every round]"),
    ),
    Mistake(
        "algorithms/decentralized/nids.py",
        "round.when(round.step > 0, combine, x.correction, x.lost)",
        "combine(x.correction, x.lost)",
        of(BITS, "bits_of_a_round_are_the_closed_forms[nids-6-5]"),
    ),
    Mistake(
        "algorithms/decentralized/pg_extra.py",
        "jax.vmap(round.prox, (0, None))(z.params, step_size)",
        "jax.vmap(round.prox, (0, None))(z.params, 2 * step_size)",
        of(PROXIMAL, "the_limit_is_the_minimizer_of_the_composite_objective[PG-EXTRA-l1]"),
    ),
    Mistake(
        "algorithms/decentralized/proximal_tracking.py",
        "mixed - v - (new - old)",
        "mixed - (new - old)",
        of(STATEMENTS, "statement_holds[prox-ATC tracking, every round]"),
    ),
    Mistake(
        "algorithms/synchronous/proximal_gradient.py",
        "workers.if_nonempty(half._replace(params=round.prox(half.params, step_size)), x)",
        "half._replace(params=round.prox(half.params, step_size))",
        of(PROXIMAL, "proximal_sgd_makes_no_step_if_no_gradient_arrives"),
    ),
    Mistake(
        "algorithms/local_updates/post_local_sgd.py",
        "(round.step < switch) |",
        "(round.step <= switch) |",
        of(LOCAL, "two_methods_are_the_same[post-local SGD, local at once]"),
    ),
    Mistake(
        "algorithms/local_updates/adacomm.py",
        "schedule(0) / schedule(done)",
        "schedule(done) / schedule(0)",
        of(STATEMENTS, "statement_holds[AdaComm, every round]"),
    ),
    Mistake(
        "algorithms/local_updates/easgd.py",
        "x + jnp.asarray(momentum, x.dtype) * v",
        "x",
        of(STATEMENTS, "statement_holds[EAMSGD, every round]"),
    ),
    Mistake(
        "algorithms/local_updates/easgd.py",
        "before, center",
        "y.params, center",
        of(PARTICIPATION, "a_method_continues_with_the_workers_that_participate[easgd]"),
    ),
    Mistake(
        "algorithms/local_updates/scaffold.py",
        "g - c_n + c[None]",
        "g - c_n - c[None]",
        history("scaffold, pipelined"),
    ),
    Mistake(
        "algorithms/synchronous/backup_workers_sgd.py",
        "leaf / counted, total",
        "leaf / round.workers, total",
        history("backup workers, blocking"),
    ),
    Mistake(
        "algorithms/compressed/memories.py",
        "route.gathered(server.model.params, x)",
        "x",
        history("ef21, pipelined"),
    ),
    Mistake(
        "algorithms/decentralized/deepsqueeze.py",
        "sub(v, sent.decoded)",
        "sub(half.params, sent.decoded)",
        history("deepsqueeze, pipelined"),
    ),
    Mistake(
        "algorithms/decentralized/extra.py",
        "pull / 2, pull",
        "pull / 1, pull",
        history("extra, pipelined"),
    ),
    Mistake(
        "algorithms/decentralized/k_gt.py",
        "laplacian((half, change), topology)",
        "laplacian((half, half), topology)",
        of(STATEMENTS, "statement_holds[K-GT, schedule, every round]"),
    ),
    Mistake(
        "algorithms/decentralized/local_exact_diffusion.py",
        "weight=beta",
        "weight=1 / period",
        of(STATEMENTS, "statement_holds[LED, every round]"),
    ),
    Mistake(
        "algorithms/decentralized/prox_skip.py",
        "weight=probability",
        "weight=1.0",
        of(STATEMENTS, "statement_holds[ProxSkip on graphs, every round]"),
    ),
    Mistake(
        "algorithms/decentralized/exact_diffusion.py",
        "round.if_active(models._replace(params=phi, optimizer=memory), models)",
        "models._replace(params=phi, optimizer=memory)",
        of(
            LOCAL_GOSSIP,
            "workers_that_compute_in_some_rounds_only_do_not_move_the_limit[exact diffusion]",
        ),
    ),
    Mistake(
        "algorithms/asynchronous/asynchronous_sgd.py",
        "maximum(1, staleness)",
        "maximum(1, 1 + staleness)",
        history("asynchronous_sgd, staleness aware, blocking"),
    ),
    # Starts, rounding, warm starts, push-sum weights.
    Mistake(
        "algorithms/decentralized/lead.py",
        "        common_start=True,\n",
        "",
        of(STARTS, "methods_with_copies_of_models_or_with_a_server_need_a_common_start"),
    ),
    Mistake(
        "algorithms/decentralized/nids.py",
        "workers.replicate(params, N) if models is None else models",
        "workers.replicate(params, N)",
        of(STARTS, "exact_methods_are_exact_from_random_starts[nids]"),
    ),
    Mistake(
        "algorithms/decentralized/exact_diffusion.py",
        "jnp.asarray(weight, c.dtype) * c",
        "-c",
        history("exact_diffusion, pipelined"),
    ),
    Mistake(
        "algorithms/decentralized/exact_diffusion.py",
        "optax.tree.sub(increment, models.lost)",
        "optax.tree.add(increment, models.lost)",
        of(DECENTRALIZED, "a_correction_loses_nothing_to_rounding"),
    ),
    Mistake(
        "algorithms/decentralized/exact_diffusion.py",
        "(after - before) - step",
        "step - (after - before)",
        of(DECENTRALIZED, "a_correction_loses_nothing_to_rounding"),
    ),
    Mistake(
        "algorithms/compressed/memories.py",
        "error=error, last=sent.messages",
        "error=error",
        of(COMPRESSED, "low_rank_messages_start_from_the_last_right_factor"),
    ),
    Mistake(
        "algorithms/matrices.py",
        "workers.where_delivered(memory, state.workers)",
        "memory",
        of(MATRICES, "workers_without_a_part_in_the_mean_keep_their_memory"),
    ),
    Mistake(
        "algorithms/matrices.py",
        "workers.if_nonempty(Factored(*model, Q), x)",
        "Factored(*model, Q)",
        of(MATRICES, "a_round_in_which_no_message_arrives_changes_nothing"),
    ),
    Mistake(
        "algorithms/matrices.py",
        "min(cuts, key=sum",
        "min(cuts, key=min",
        of(MATRICES, "axes_are_cut_where_the_sides_of_the_matrix_are_shortest"),
    ),
    Mistake(
        "dsgd/compressors/low_rank.py",
        "jnp.where(size > 0, start, normal(key, last.shape, last.dtype))",
        "start",
        of(MATRICES, "the_first_factor_is_drawn_from_the_runs_key"),
    ),
    Mistake(
        "algorithms/decentralized/stochastic_gradient_push.py",
        "lambda x: x / w.astype(x.dtype), x)",
        "lambda x: x / 8, x)",
        of(DECENTRALIZED, "push_sum_divides_by_the_actual_weights"),
    ),
    Mistake(
        "algorithms/decentralized/gradient_tracking.py",
        "optax.tree.add(tracker, optax.tree.sub(gradients, last))",
        "optax.tree.sub(optax.tree.add(tracker, gradients), last)",
        of(
            "algorithms/test_directed",
            "in_float32_the_models_stay_at_the_minimizer[push_diging, schedule]",
        ),
    ),
    # Events.
    Mistake(
        "algorithms/asynchronous/arrivals.py",
        "in_order <= t +",
        "in_order < t +",
        of(
            ASYNCHRONOUS,
            "bounded_staleness_takes_the_first_gradient_that_leaves_an_order_within_the_bound",
        ),
    ),
    Mistake(
        "algorithms/asynchronous/arrivals.py",
        "jnp.argmin(taken, axis=1)",
        "jnp.argmax(taken, axis=1)",
        of(ASYNCHRONOUS, "no_model_in_use_by_a_worker_is_overwritten"),
    ),
    Mistake(
        "algorithms/asynchronous/arrivals.py",
        "bits, reading + latency)",
        "bits, reading)",
        of(ASYNCHRONOUS, "a_round_trip_takes_the_time_of_its_bits_at_changing_bandwidths"),
    ),
    Mistake(
        "algorithms/asynchronous/arrivals.py",
        "jnp.where(fresh, round.step + 1, events.version)",
        "jnp.where(fresh, round.step, events.version)",
        of(ASYNCHRONOUS, "no_model_in_use_by_a_worker_is_overwritten"),
    ),
    Mistake(
        SERVER,
        "(t - jnp.arange(models)) % models",
        "(t + jnp.arange(models)) % models",
        of(ASYNCHRONOUS, "the_worst_case_is_the_farthest_of_the_last_models"),
    ),
    Mistake(
        SERVER,
        "arrival, read)\n        checks",
        "arrival, state.server.model.params)\n        checks",
        of(ASYNCHRONOUS, "a_custom_step_gets_the_model_that_the_gradient_was_computed_at"),
    ),
    Mistake(
        GOSSIP,
        "jax.random.randint(key, ids.shape, 0, jnp.asarray(self.degrees)[ids])",
        "0 * jnp.asarray(self.degrees)[ids]",
        of(ASYNCHRONOUS, "partners_are_neighbours_with_equal_probabilities"),
    ),
    Mistake(
        GOSSIP,
        "jnp.where(now.worker == now.partner, -1, pair)",
        "pair",
        of(ASYNCHRONOUS, "without_staleness_it_is_sgd_to_the_bit[gossip of one]"),
    ),
    Mistake(
        "algorithms/asynchronous/delays.py",
        "jnp.minimum(t, bound) + 1",
        "jnp.maximum(jnp.minimum(t, bound), 1)",
        of(
            "algorithms/test_delays",
            "uniform_draws_each_staleness_equally_often_and_independently_for_each_part",
        ),
    ),
    # Participation, and workers without work.
    Mistake(
        "algorithms/methods.py",
        "before._replace(params=after.params)",
        "before",
        of(PARTICIPATION, "a_method_continues_with_the_workers_that_participate[local_sgd]"),
    ),
    Mistake(
        "algorithms/local_updates/scaffold.py",
        "round.if_active(gradients, y.control)",
        "gradients",
        of(PARTICIPATION, "a_method_continues_with_the_workers_that_participate[scaffold]"),
    ),
    Mistake(
        "algorithms/with_diagnostics.py",
        "jnp.nan) ** 2",
        "jnp.nan)",
        of("algorithms/test_with_local_work", "recorded_norms_are_those_of_the_gradients"),
    ),
    Mistake(
        "algorithms/with_local_work.py",
        "method.query(state, round._replace(work=in_samples(own, *sizes)))",
        "method.query(state, round)",
        of(
            "algorithms/test_with_local_work",
            "methods_with_their_own_clock_are_queried_with_the_work",
        ),
    ),
    # Gossip of compressed differences.
    Mistake(
        "algorithms/gossip.py",
        "return _pulled(estimates, weights)",
        "return _pulled((own, others), weights)",
        of(STATEMENTS, "statement_holds[LEAD, every round]"),
    ),
    Mistake(
        "algorithms/decentralized/lead.py",
        "consensus_step / 2",
        "consensus_step",
        of(GOSSIP_OF_DIFFERENCES, "two_methods_are_the_same[LEAD]"),
    ),
    Mistake(
        "algorithms/decentralized/beer.py",
        "for value in (x.params, zero)",
        "for value in (zero, zero)",
        of(STATEMENTS, "statement_holds[BEER, every round]"),
    ),
    Mistake(
        "algorithms/decentralized/beer.py",
        "compressor, vectors, copies, topology, memory_step)",
        "compressor, vectors, copies, topology)",
        of(STATEMENTS, "statement_holds[C-GT, every round]"),
    ),
    Mistake(
        "algorithms/decentralized/beer.py",
        "jnp.where(round.step == 0, 1, momentum_step)",
        "jnp.where(round.step == 1, 1, momentum_step)",
        of(STATEMENTS, "statement_holds[MoTEF, every round]"),
    ),
    Mistake(
        "algorithms/decentralized/dcd_sgd.py",
        "optax.tree.add(state.laplacian, change)",
        "optax.tree.sub(change, state.laplacian)",
        of(GOSSIP_OF_DIFFERENCES, "the_limit_of_dcd_is_that_of_decentralized_gradient_descent"),
    ),
    Mistake(
        "algorithms/decentralized/dcd_sgd.py",
        "(old + (new - old) / half)",
        "(old + (new - old) / (2 * half))",
        of(GOSSIP_OF_DIFFERENCES, "ecd_approaches_that_limit_as_the_root_of_the_number_of_rounds"),
    ),
    # Memories of compressed messages.
    Mistake(
        "algorithms/compressed/memories.py",
        "workers.where_delivered(after, kept)",
        "after",
        of("algorithms/test_participation", f"{CONTINUES}[econtrol]"),
    ),
    Mistake(
        "algorithms/compressed/diana.py",
        'shift=alpha_of, over="arrived"',
        "shift=alpha_of",
        of("algorithms/test_participation", f"{CONTINUES}[diana]"),
    ),
    Mistake(
        "algorithms/compressed/diana.py",
        "sizes) / workers(N))",
        "sizes))",
        of("algorithms/test_memories", "methods_with_memories_equal_others[EF-BV's numbers-0.0]"),
    ),
    Mistake(
        "algorithms/compressed/ef21_sgdm.py",
        "(double_momentum if double else momentum)",
        "(momentum if double else double_momentum)",
        of(STATEMENTS, "statement_holds[EF21-SGDM, every round]"),
    ),
    Mistake(
        "algorithms/compressed/econtrol.py",
        "Up(compressor, error=eta, shift=1.0)",
        "Up(compressor, error=eta, shift=1.0, decay=0.9)",
        of(STATEMENTS, "statement_holds[EControl, every round]"),
    ),
    Mistake(
        "algorithms/compressed/dist_ef_sgd.py",
        'Down(compressor, "error")',
        "Down(compressor, None)",
        of(STATEMENTS, "statement_holds[dist-EF-blockSGD, every round]"),
    ),
    Mistake(
        "algorithms/compressed/servers.py",
        "round.prox(after.params, gamma)",
        "round.prox(after.params, 2 * gamma)",
        of(STATEMENTS, "statement_holds[DIANA, prox, every round]"),
    ),
    # Validation.
    Mistake(
        "algorithms/optimizers.py",
        "if step > 0 and _ascends",
        "if step > 1 and _ascends",
        of(OPTIMIZERS, "an_optimizer_that_cannot_work_is_refused"),
    ),
    Mistake(
        "algorithms/gossip.py",
        "if symmetric and not topology.symmetric",
        "if symmetric and not topology.doubly_stochastic",
        of(DECENTRALIZED, "a_graph_that_a_method_cannot_use_is_refused[choco_sgd]"),
    ),
    Mistake(
        "algorithms/decentralized/d2.py",
        "<= -1 / 3 + 1e-9",
        "< -1 / 3 - 1e-9",
        of(DECENTRALIZED, "d2_refuses_an_eigenvalue_at_or_below_minus_a_third"),
    ),
    # On Ray.
    Mistake(
        "algorithms/asynchronous/on_ray/server.py",
        "about.era == self.era and ",
        "",
        of(ON_RAY, "a_server_resumes_from_its_checkpoint_and_refuses_earlier_gradients"),
    ),
    Mistake(
        "algorithms/asynchronous/on_ray/peer.py",
        "max(self.stamp, stamp) + 1",
        "self.stamp + 1",
        of(ON_RAY, "a_partner_averages_with_a_stamp_above_both_once_it_has_begun"),
    ),
    Mistake(
        "algorithms/compressed/sketched_sgd.py",
        "workers.where_delivered(memories, state.workers)",
        "memories",
        of(PARTICIPATION, "a_method_continues_with_the_workers_that_participate[sketched_sgd]"),
    ),
    Mistake(
        "algorithms/compressed/sketched_sgd.py",
        "S_e = S_e - sent",
        "S_e = 0 * S_e",
        of(STATEMENTS, "statement_holds[FetchSGD, subtracted, every round]"),
    ),
]


def test_mistakes_are_found(stride):
    assert mistakes.survivors(MISTAKES[::stride]) == []
