"""What a model is: a scoring function of entity and relation rows.

Letters in shapes: `b` queries, `k` candidates, `d` width of an entity row, `e` width of a relation row.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from kgexp.data.sides import Side
from kgexp.models.initial import initial_rows
from kgexp.models.pieces import by_pieces
from kgexp.randomness import Float64, Int64

#: From the derivative of anything by what a function of two tensors has made, to those by the two.
Backward = Callable[[Tensor], tuple[Tensor, Tensor]]

#: The same, which writes the two derivatives into memory that is given, or adds the first one to what is there.
BackwardInto = Callable[[Tensor, Tensor, Tensor], None]


class Model(ABC):
    """A scoring function written as a *query* row against candidate rows.

    The tail query of a triple is made of its head and relation, the head query of its tail and relation. A
    higher score means a more plausible triple.

    Args:
        dim: reals in an entity row.
        reciprocal: a head query `(?, r, t)` is answered as the tail query `(t, r⁻¹, ?)`, with a relation row of
            its own for `r⁻¹` (Lacroix et al. 2018); relation rows then number 2m.
        init: distribution of the initial numbers, a name of `models.initial.DISTRIBUTIONS`.
        init_scale: standard deviation of `normal`, bound of `uniform`, gain of `xavier_normal` and `xavier_uniform`.
        max_norm: L2 norm that the updates of entity rows keep them within; None for any.
        entity_dropout, relation_dropout: the probability with which training drops every number of a row that it
            scores; see `kgexp.scoring.dropout`.
    """

    #: Whether relation rows are angles, which turn and have no size: nothing penalises them or drops them.
    relations_are_angles = False

    def __init__(
        self,
        dim: int,
        reciprocal: bool = True,
        init: str = "normal",
        init_scale: float = 1e-3,
        max_norm: float | None = None,
        entity_dropout: float = 0.0,
        relation_dropout: float = 0.0,
    ) -> None:
        self.dim = dim
        self.reciprocal = reciprocal
        self.init = init
        self.init_scale = init_scale
        self.max_norm = max_norm
        self.entity_dropout = entity_dropout
        self.relation_dropout = relation_dropout

    @property
    @abstractmethod
    def relation_dim(self) -> int:
        """Reals in a relation row."""

    @abstractmethod
    def tail_query(self, h: Tensor, r: Tensor) -> Tensor:
        """float[b, d] and float[b, e] to the query rows float[b, d] of `(h, r, ?)`."""

    @abstractmethod
    def head_query(self, r: Tensor, t: Tensor) -> Tensor:
        """float[b, e] and float[b, d] to the query rows float[b, d] of `(?, r, t)`."""

    @abstractmethod
    def score(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """Queries float[b, d] against candidates float[k, d] shared by all, to float[b, k].

        Leading dimensions broadcast: float[c, b, d] against float[c, k, d] gives float[c, b, k] (chunks), and
        float[b, 1, d] against float[b, k, d] gives float[b, 1, k] (own candidates for every query).
        """

    def scored(self, queries: Tensor, candidates: Tensor) -> tuple[Tensor, Backward]:
        """`score` with its gradient by hand: autograd sees neither, and nothing is kept but what the gradient needs.

        Args:
            queries: float[b, d], or float[c, b, d].
            candidates: float[k, d], or float[c, k, d].

        Returns:
            The scores float[(c,) b, k], whose memory is the caller's; and from the derivative of anything by them,
            float[(c,) b, k], the function to those by the queries and by the candidates.
        """
        scores, backward = _by_autograd(self.score, queries, candidates)
        return scores.clone(memory_format=torch.contiguous_format), backward

    def score_pairs(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """Query i against candidate i alone: float[b, d] twice to float[b]."""
        return self.score(queries.unsqueeze(-2), candidates.unsqueeze(-2))[..., 0, 0]

    def scored_pairs(self, queries: Tensor, candidates: Tensor) -> tuple[Tensor, BackwardInto]:
        """`score_pairs` with its gradient by hand, as `scored`: float[b, d] twice to float[b]. The derivative by the
        queries is added to the first memory, that by the candidates written into the second."""
        scores, backward = _by_autograd(self.score_pairs, queries, candidates)

        def into(upstream: Tensor, by_queries: Tensor, by_candidates: Tensor) -> None:
            of_queries, of_candidates = backward(upstream)
            by_queries.add_(of_queries)
            by_candidates.copy_(of_candidates)

        return scores, into

    @abstractmethod
    def rescore_pairs(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """The same as `score_pairs`, slower, with bits that do not depend on the company.

        Every score is computed by itself, by the same operations in the same order whatever `b` is, so the same
        two rows give the same bits in any batch, on any number of threads. That is what near ties are decided by.
        """

    @abstractmethod
    def score_error(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """float[b, 1]: a bound on |`score` - the exact score| for each query against any of the candidates.

        It holds for any order of summation in the rows' dtype, and counts the rounding of the query itself, but
        not what underflows: that hangs on the size of the rows and not on the model.
        """

    def score_triples(self, h: Tensor, r: Tensor, t: Tensor) -> Tensor:
        """float[b, d], float[b, e], float[b, d] to the scores float[b]."""
        return self.score_pairs(self.tail_query(h, r), t)

    def score_tails(self, h: Tensor, r: Tensor, candidates: Tensor) -> Tensor:
        """Every candidate as the tail: float[b, d], float[b, e], float[k, d] to float[b, k]."""
        return self.score(self.tail_query(h, r), candidates)

    def score_heads(self, candidates: Tensor, r: Tensor, t: Tensor) -> Tensor:
        """Every candidate as the head: float[k, d], float[b, e], float[b, d] to float[b, k]."""
        return self.score(self.query(Side.HEAD, t, r), candidates)

    def score_relations(self, h: Tensor, candidates: Tensor, t: Tensor) -> Tensor:
        """Every candidate as the relation: float[b, d], float[k, e], float[b, d] to float[b, k].

        Piece by piece, as every pair has a query of its own; `tail_query` has to broadcast. A model that can do it by
        one product does.
        """

        def score(h: Tensor, r: Tensor, t: Tensor) -> Tensor:
            return self.score_pairs(self.tail_query(h.unsqueeze(-2), r), t.unsqueeze(-2))

        return by_pieces(score, h, candidates, t)

    def query(self, side: Side, entity: Tensor, relation: Tensor) -> Tensor:
        """The query rows float[b, d] for `side`, of the given entity's rows float[b, d] and the relation rows
        float[b, e] that `relation_rows` names for that side."""
        if side is Side.TAIL or self.reciprocal:
            return self.tail_query(entity, relation)
        return self.head_query(relation, entity)

    def queried(self, side: Side, entity: Tensor, relation: Tensor) -> tuple[Tensor, BackwardInto]:
        """`query` with its gradient by hand, as `scored`: the query rows float[b, d]. The derivatives by the entity's
        and the relation's rows are written into memory that is given."""
        queries, backward = _by_autograd(partial(self.query, side), entity, relation)

        def into(upstream: Tensor, by_entity: Tensor, by_relation: Tensor) -> None:
            for by, derivative in zip((by_entity, by_relation), backward(upstream), strict=True):
                by.copy_(derivative)

        return queries, into

    def relation_rows(self, relations: Tensor, side: Side, num_relations: int) -> Tensor:
        """int64[b] relation ids to the rows int64[b] of the relation table that queries of `side` use."""
        return relations + num_relations if self.reciprocal and side is Side.HEAD else relations

    def squared_moduli(self, rows: Tensor) -> Tensor:
        """The squared size of every component of entity rows, and of relation rows unless these are angles:
        float[b, d] to float[b, d], or to float[b, d / 2] where a component is a pair of reals. N3 is made of it."""
        return rows * rows

    def initial_entities(self, stream: int, ids: Int64, num_rows: int) -> Float64:
        """The first entity rows for the ids int64[u] of a table of `num_rows` rows: float64[u, d]."""
        return initial_rows(self.init, self.init_scale, stream, ids, num_rows, self.dim)

    def initial_relations(self, stream: int, ids: Int64, num_rows: int) -> Float64:
        """The first relation rows for the row numbers int64[u] of a table of `num_rows` rows: float64[u, e]."""
        return initial_rows(self.init, self.init_scale, stream, ids, num_rows, self.relation_dim)

    def num_relation_rows(self, num_relations: int) -> int:
        """Rows of the relation table for a graph of `num_relations` relations."""
        return 2 * num_relations if self.reciprocal else num_relations


class DotProductModel(Model):
    """A model whose score is the inner product of query and candidate: one matrix product for all of them."""

    def score(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """See `Model.score`."""
        return queries @ candidates.mT

    def scored(self, queries: Tensor, candidates: Tensor) -> tuple[Tensor, Backward]:
        """See `Model.scored`: two more matrix products."""

        def backward(upstream: Tensor) -> tuple[Tensor, Tensor]:
            return upstream @ candidates, upstream.mT @ queries

        return queries @ candidates.mT, backward

    def score_pairs(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """See `Model.score_pairs`."""
        return (queries * candidates).sum(dim=-1)

    def scored_pairs(self, queries: Tensor, candidates: Tensor) -> tuple[Tensor, BackwardInto]:
        """See `Model.scored_pairs`."""

        def backward(upstream: Tensor, by_queries: Tensor, by_candidates: Tensor) -> None:
            by_queries.addcmul_(upstream.unsqueeze(-1), candidates)
            torch.mul(upstream.unsqueeze(-1), queries, out=by_candidates)

        return self.score_pairs(queries, candidates), backward

    def rescore_pairs(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """See `Model.rescore_pairs`."""
        return fold(torch.add, queries * candidates)

    def score_error(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """See `Model.score_error`: |fl(q·c) - q·c| <= γ |q|·|c| <= γ ‖q‖ ‖c‖ with γ = du / (1 - du), for any order
        of summation (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). Four units more cover
        the rounding of the query's elements; the last factor that of the bound."""
        unit = torch.finfo(queries.dtype).eps / 2
        gamma = (self.dim + 4) * unit / (1 - (self.dim + 4) * unit)
        largest = candidates.norm(dim=-1).amax() if len(candidates) else candidates.new_zeros(())
        bound: Tensor = queries.norm(dim=-1, keepdim=True) * (largest * gamma * 1.01 * 2**0.5)
        return bound


def _by_autograd(function: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Backward]:
    """What a function makes of two tensors, apart from autograd, and its gradient."""
    with torch.enable_grad():
        leaves = x.detach().requires_grad_(), y.detach().requires_grad_()
        made = function(*leaves)

    def backward(upstream: Tensor) -> tuple[Tensor, Tensor]:
        by_x, by_y = torch.autograd.grad(made, leaves, upstream)
        return by_x, by_y

    return made.detach(), backward


def fold(combine: Callable[[Tensor, Tensor], Tensor], x: Tensor) -> Tensor:
    """Reduces the last dimension by halves, with elementwise operations only: float[…, d] to float[…].

    A library's reduction may order its sums by shape, stride and threads; this order depends on `d` alone.
    """
    while (d := x.shape[-1]) > 1:
        half = d // 2
        folded = combine(x[..., :half], x[..., half : 2 * half])
        x = torch.cat([folded, x[..., -1:]], dim=-1) if d % 2 else folded
    return x[..., 0]
