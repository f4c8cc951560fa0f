"""Compiles every kernel for a GPU that need not be there; run by itself, as Triton either compiles or interprets."""

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from kgexp.kernels import distances, rows

NUMBERS = {"u", "b", "k", "d", "x", "y", "leads", "length", "by_lead", "by_own", "by_other"}
POINTERS = {"weight", "grad", "first", "second", "each", "queries", "candidates", "own", "other", "upstream", "out"}

CASES = [
    *((rows._step, {"RULE": rule, "INDEXED": True, "ROWS": 4, "WIDTH": 256}) for rule in range(4)),
    (rows._step, {"RULE": 3, "INDEXED": False, "ROWS": 64, "WIDTH": 1, "d": 1}),
]
for kind in distances.KINDS.values():
    CASES += [
        (distances._scores, {"LINES": 16, "COLUMNS": 128, **kind._asdict()}),
        (distances._scores, {"LINES": 2, "COLUMNS": 1, "k": 1, **kind._asdict()}),  # Triton takes a 1 as a constant
        (distances._scores_of_one, {"COLUMNS": 32, "DEPTH": 64, **kind._asdict()}),
        (distances._slopes, {"ROWS": 4, "DEPTH": 128, **kind._asdict()}),
        (distances._slopes, {"ROWS": 1, "DEPTH": 4, "x": 1, "leads": 1, "length": 1, "by_other": 1, **kind._asdict()}),
    ]

for kernel, constants in CASES:
    names = {name.lower(): name for name in kernel.arg_names}
    given = {names[name.lower()]: value for name, value in constants.items()}
    given |= {name: True for name in ("CLIPS", "BOUNDED") if name in kernel.arg_names}
    signature = {}
    for name in kernel.arg_names:
        kind = "i32" if name in NUMBERS else "*fp32" if name in POINTERS else "*i64" if name == "index" else "fp32"
        signature[name] = "constexpr" if name in given else kind
    source = ASTSource(kernel, signature, {(kernel.arg_names.index(name),): value for name, value in given.items()})
    compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1})
    print(kernel.__name__, constants)
