"""Ten defects of an engine, chosen by somebody who had read engines and sessions, but none of the checks.

The list was written before the checks were read. Each defect is of another kind and changes what is trained or
measured.
"""

IN_WORDS = {
    "lax_clip": "the clip limit is compared with the norm of one rank's share: it is `world` times too large",
    "uncleared": "the gradient of the last parameter is never cleared: each step adds to that of the step before",
    "spike_guard": "a guard against spikes skips the update where the gradient's norm exceeds twice its running mean",
    "bf16_state": "the optimizer's state is kept in bfloat16: it is rounded after every step",
    "reset_state": "the optimizer is built anew every 16 steps, as at the border of an epoch: its state is lost",
    "left_in_evaluation": "an evaluation leaves the model in evaluation mode: training goes on with running statistics",
    "mean_of_means": "an evaluation averages the batches' means: samples of a smaller last batch count more",
    "warm_state": "the warm-up leaves its optimizer state behind: momentum and step count begin with synthetic data",
    "stale_batch": "a prefetch buffer is reused too early: every tenth step trains on the batch of the step before",
    "rare_sync": "parameters of one dimension are averaged every fourth step only: between, ranks use their own",
}
