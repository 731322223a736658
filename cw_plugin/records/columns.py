"""What a token record holds: a row for each token, and metadata of the batch.

The schema's metadata has the step, the options scope, weights and settings, how many groups and tokens the whole batch
has, the prompts as JSON, by group, and when the run was started (in UTC): a later start overtakes records of an earlier
one.
"""

FOLDER = "tokens"  # within the run's folder; its files are step_000050.parquet, step_000050-2.parquet, ...

WHOLE_NUMBERS = (
    "group",  # the token's prompt group, from 0
    "row",  # in the batch
    "position",  # in the response, from 0, whatever the padding
    "token_id",
)
REAL_NUMBERS = (
    "log_prob",  # in nats
    "advantage",  # before the weights
    "covariance",  # c
    "gaussian",  # w, the Gaussian kernel of c, whichever weighting the run used
    "weight",  # w~, as it was applied
    "reward",  # of the response
)
TEXT = "text"  # of the token
