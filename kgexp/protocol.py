"""The words that metric names are made of: `{split}/{filter}/{tie}/{side}/{metric}`."""

TIES = ("realistic", "optimistic", "pessimistic")
SIDES = ("both", "head", "tail")
METRICS = ("mrr", "mr", "median", "hits@1", "hits@3", "hits@10", "amri")
LOWER_IS_BETTER = ("mr", "median")
GROUPED = ("macro_relation/mrr", "macro_query/mrr")  # further averages that every ranking has

#: `{tie}/{side}/{metric}` of every ranking: what `evaluation.objective` may be.
OBJECTIVES = (
    *(f"realistic/{side}/{metric}" for side in SIDES for metric in METRICS + GROUPED),
    *(f"{tie}/both/{metric}" for tie in TIES[1:] for metric in METRICS[:-1]),
)
