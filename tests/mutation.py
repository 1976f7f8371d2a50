"""Small changes of right answers, such as people make, put to the checks: which of them earn full points?

PYTHONPATH=. python tests/mutation.py [NAME ...]       lists the mutants that survive, and how many were made
PYTHONPATH=. python tests/mutation.py --names [NAME]   how known mistakes, mutants and pairs of mistakes are named;
                                                       --most=40 looks at 40 mutants of each exercise

A mutant is a right answer with one place changed: a comparison, an offset, the order of two lines, a line left out,
another variable, another axis, an argument that is written into, a result that is remembered. The solution and one
other right answer of each exercise are mutated. Each runs in a subprocess under a time limit; one that does not come
to an end is refused by any grader. A survivor is a fault of the check, or computes the same: then tests/equivalent.txt
lists it with the reason.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import itertools
import multiprocessing
import pkgutil
import random
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from right_answers import right_answers

from autograder import exercises
from autograder.answers import InProcess
from autograder.check import PUBLIC_SEED, evaluate
from autograder.exercise import Exercise
from autograder.exercises import EXERCISES
from autograder.judge import read
from autograder.kept import _changed, solution_text

SECONDS = 10  # for all groups of one mutant; right answers need less than two
OTHER_SEEDS = (11, 12, 13)
EQUIVALENT = Path(__file__).with_name("equivalent.txt")

SWAPPED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip

SYMMETRIC = ("min", "max", "np.minimum", "np.maximum", "np.array_equal")

SPOILS = """
def _spoil(value):
    if hasattr(value, "clear") and hasattr(value, "append"):
        value.clear()
    elif hasattr(value, "fill") or hasattr(value, "fill_"):
        getattr(value, "fill", None)(0) if hasattr(value, "fill") else value.fill_(0)
    else:
        raise SystemExit("nothing to write into")
"""


@dataclass(frozen=True)
class Mutant:
    """`what` names it: exercise, which right answer, kind and the change; equal changes are counted."""

    exercise: str
    what: str
    source: str


def mutants(exercise: Exercise) -> list[Mutant]:
    """All mutants of the solution and of one other right answer, in the order of their lines."""
    found: dict[str, Mutant] = {}
    for which, source in (("solution", solution_text(exercise.solution)), ("answer 1", right_answers(exercise)[0])):
        for change, text in [*_changes(source), *_habits(exercise.name, source)]:
            if exercise.name.startswith("check_") and change.startswith(("offset", "operator", "slice")):
                continue  # the answer is a test: with other numbers it is another right test
            what, count = f"{exercise.name}, {which}, {change}", 1
            while what in found:
                count += 1
                what = f"{exercise.name}, {which}, {change} (place {count})"
            found[what] = Mutant(exercise.name, what, text)
    return list(found.values())


def _changes(source: str) -> Iterator[tuple[str, str]]:
    """(what is changed, the changed source) for every place in the text."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            node.msg = None  # what a test says when it refuses is its own affair
    for function in [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]:
        names = _variables(function)
        signature = {id(node) for node in ast.walk(function.args)}  # that is given to the learner
        for node in ast.walk(function):
            if id(node) in signature:
                continue
            for kind, change, undo in _at(node, names):
                before = _said(node, function)
                change()
                try:
                    text, after = ast.unparse(tree), _said(node, function)
                    compile(text, "mutant", "exec")
                except (SyntaxError, ValueError, AttributeError, IndexError):
                    text = ""
                undo()
                if text and text != ast.unparse(tree):
                    yield kind if ": " in kind else f"{kind}: {before} -> {after}", text


def _said(node: ast.AST, function: ast.FunctionDef) -> str:
    """The smallest statement around a node, in its first line."""
    around = function
    for statement in ast.walk(function):
        if isinstance(statement, ast.stmt) and any(inner is node for inner in ast.walk(statement)):
            around = statement  # ast.walk goes outside in
    return _line(around)


def _line(statement: ast.stmt) -> str:
    return ast.unparse(statement).split("\n")[0][:110]


def _variables(function: ast.FunctionDef) -> list[str]:
    """Its arguments and what it assigns: what one may mistake for another."""
    names = [a.arg for a in (*function.args.args, *function.args.kwonlyargs) if a.arg != "self"]
    names += [n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return list(dict.fromkeys(names))


def _at(node: ast.AST, names: list[str]):
    """(kind, change, undo) for each small change at a node."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPPED:
        yield "comparison", *_swap(node.ops, 0, SWAPPED[type(node.ops[0])]())
    if isinstance(node, (ast.BinOp, ast.BoolOp, ast.AugAssign)) and type(node.op) in SWAPPED:
        yield "operator", *_set(node, "op", SWAPPED[type(node.op)]())
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield "sign", *_set(node, "op", ast.UAdd())
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield "offset", *_set(node, "value", node.value + 1)
        yield "offset", *_set(node, "value", node.value - 1)
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        yield "constant", *_set(node, "value", not node.value)
    if isinstance(node, ast.keyword) and node.arg == "axis":
        other = ast.Constant(0) if ast.unparse(node.value) != "0" else ast.Constant(-1)
        yield "axis", *_set(node, "value", other)
    if isinstance(node, ast.Slice):
        for side in ("lower", "upper"):
            if getattr(node, side) is not None:
                yield "slice", *_set(node, side, None)
                yield "slice", *_set(node, side, ast.BinOp(getattr(node, side), ast.Add(), ast.Constant(1)))
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names:
        place = names.index(node.id)
        for other in {names[place - 1], names[(place + 1) % len(names)]} - {node.id}:
            yield "variable", *_set(node, "id", other)
    if isinstance(node, ast.Call) and len(node.args) >= 2 and ast.unparse(node.func) not in SYMMETRIC:
        yield "order of arguments", *_set(node, "args", [node.args[1], node.args[0], *node.args[2:]])
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        yield "condition", *_set(node, "test", ast.UnaryOp(ast.Not(), node.test))
    for field in ("body", "orelse"):
        block = getattr(node, field, None)
        if isinstance(block, list):
            for place, statement in enumerate(block):
                if not isinstance(statement, (ast.FunctionDef, ast.Pass)):
                    yield (
                        f"line left out: {_line(statement)}",
                        *_swap(block, place, ast.copy_location(ast.Pass(), statement)),
                    )
                if place + 1 < len(block) and not _independent(statement, block[place + 1]):
                    yield f"order of lines: {_line(statement)}; {_line(block[place + 1])}", *_exchange(block, place)


def _independent(first: ast.stmt, second: ast.stmt) -> bool:
    """Whether two lines may obviously change places: definitions, or lines that do not touch what the other does."""
    if isinstance(first, ast.FunctionDef):
        return True
    touched = [_touched(first), _touched(second)]
    if None in touched:
        return False
    (written, read), (written_after, read_after) = touched
    return not (written & (written_after | read_after) or written_after & read)


def _touched(statement: ast.stmt) -> tuple[set[str], set[str]] | None:
    """What an assignment or a call x.append(...) changes, and what it reads; None for any other statement."""
    if isinstance(statement, ast.Assign):
        targets, value = statement.targets, statement.value
    elif isinstance(statement, ast.AugAssign):
        targets, value = [statement.target], statement.value
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        if not isinstance(statement.value.func, ast.Attribute):
            return None
        targets, value = [statement.value.func.value], ast.Tuple(statement.value.args)
    else:
        return None
    calls = [ast.unparse(n.func) for n in ast.walk(value) if isinstance(n, ast.Call)]
    if any(".pop" in name or name.startswith("next") for name in calls):
        return None
    written = {ast.unparse(t) for target in targets for t in getattr(target, "elts", [target])}
    return written, {ast.unparse(n) for n in ast.walk(value) if isinstance(n, (ast.Name, ast.Attribute))}


def _set(node: ast.AST, field: str, value):
    old = getattr(node, field)
    return lambda: setattr(node, field, value), lambda: setattr(node, field, old)


def _swap(block: list, place: int, value):
    old = block[place]
    return lambda: block.__setitem__(place, value), lambda: block.__setitem__(place, old)


def _exchange(block: list, place: int):
    def exchange():
        block[place], block[place + 1] = block[place + 1], block[place]

    return exchange, exchange


def _habits(name: str, source: str) -> Iterator[tuple[str, str]]:
    """Arguments that are written into after the result is there, and results that are remembered."""
    function = ast.parse(source).body[-1]
    if not isinstance(function, ast.FunctionDef):
        yield from _class_habits(name, source)
        return
    arguments = function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    given = ", ".join(f"{n}={n}" for n in names)
    head = ast.unparse(arguments)
    for argument in names:
        body = f"def {name}({head}):\n    result = _right({given})\n    _spoil({argument})\n    return result\n"
        yield f"argument written into: {argument}", f"{source}\n_right = {name}\n{SPOILS}\n{body}"
    for kept, key in (("first result", "0"), ("result of the first argument", f"repr({names[0]})")):
        if len(names) > 1 or key == "0":
            body = (
                f"_kept = {{}}\ndef {name}({head}):\n    if {key} not in _kept:\n"
                f"        _kept[{key}] = _right({given})\n    return _kept[{key}]\n"
            )
            yield f"remembered: {kept}", f"{source}\n_right = {name}\n{body}"


def _class_habits(name: str, source: str) -> Iterator[tuple[str, str]]:
    """What __init__ makes is made once, for all objects of the class."""
    body = f"{source}\n_init, _made = {name}.__init__, []\ndef _once(self, *args):\n"
    body += "    _init(self, *args)\n    _made.append(dict(vars(self)))\n    vars(self).update(\n"
    body += "        {k: v for k, v in _made[0].items() if isinstance(v, (list, dict, set))})\n"
    yield "remembered: lists and dicts of the first object", f"{body}{name}.__init__ = _once\n"


# --- running them


def outcome(mutant: Mutant, seed: int = PUBLIC_SEED) -> str:
    """ "survives", or "refused"; what writes into nothing "has nothing to change"."""
    exercise = EXERCISES[mutant.exercise]
    try:
        answer = exercise.compile(mutant.source)
    except Exception:
        return "refused"
    for group in exercise.groups:
        verdict = evaluate(exercise, group, answer, seed)
        if not verdict.passed:
            return "has nothing to change" if "nothing to write into" in verdict.what else "refused"
    return "survives"


def _work(job, made: list[Mutant], pipe) -> None:
    import os
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    sys.stdout = open(os.devnull, "w")
    pipe.send("ready")
    for mutant in made:
        try:
            pipe.send(job(mutant))
        except (Exception, SystemExit) as error:
            pipe.send(f"broke the check: {type(error).__name__}: {error}")


def run_all(made: list[Mutant], job=outcome) -> list:
    """What `job` says of each mutant, or "does not end"; a process that hangs is ended and replaced."""
    results: list = []
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork, and its products hang
    while len(results) < len(made):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(job, made[len(results) :], theirs), daemon=True)
        process.start()
        theirs.close()
        try:
            ours.poll(60) and ours.recv()  # it has imported what it needs
            while len(results) < len(made):
                if not ours.poll(SECONDS):
                    results.append("does not end")
                    break
                results.append(ours.recv())
        except EOFError:  # it was ended from inside, or ran out of memory
            results.append("does not end")
        process.kill()
        process.join()
    return results


# --- names


def naming(mutant: Mutant) -> list[str]:
    """For each group that refuses it: "right", "general" (no known mistake is named), "careful" (as one that may
    have the same error) or "wrong: NAME".

    A name is right if the known mistake does the same as the mutant on three other seeds.
    """
    exercise, said = EXERCISES[mutant.exercise], []
    try:
        answer = exercise.compile(mutant.source)
    except Exception:
        return []
    for group in exercise.groups:
        if group.talk:
            continue  # its calls depend on the answers
        verdict = evaluate(exercise, group, answer)
        if not verdict.passed:
            same = [name for name in verdict.mistakes if _does_the_same(exercise, group, answer, name)]
            careful = (
                exercise.kind_only or "and of others: " in verdict.which
            )  # the message says that it may be another
            wrong = "careful" if careful else f"wrong: {verdict.mistakes}"
            said.append("right" if same else wrong if verdict.mistakes else "general")
    return said


def _does_the_same(exercise: Exercise, group, answer, name: str) -> bool:
    known = exercise.compile(exercise.wrong_answer(name).source)
    for seed in OTHER_SEEDS:
        calls = group.cases(seed)
        a, b = (
            InProcess(fn, exercise.driver, exercise.callbacks).run(calls, apart=group.apart) for fn in (answer, known)
        )
        if not all(exercise.same(read(x, group.form), read(y, group.form)) for x, y in zip(a, b)):
            return False
    return True


def combinations(exercise: Exercise, count: int) -> list[Mutant]:
    """`count` pairs of known mistakes made in one answer; fewer where few mistakes are changes of different places."""
    blocks = [block.splitlines() for block in mistakes_text(exercise).split("\n\n")]
    changes = {
        b[0].strip(): [line[2:] for line in b[1:] if re.match(r"  +[^ |].*  ->", line)] for b in map(_dedented, blocks)
    }
    pairs = list(itertools.combinations([name for name, made in changes.items() if made], 2))
    random.Random(exercise.name).shuffle(pairs)
    found = []
    for pair in pairs:
        try:
            source = _changed("both", [c for name in pair for c in changes[name]], solution_text(exercise.solution))
        except ValueError:
            continue  # they change the same place
        found.append(Mutant(exercise.name, f"{exercise.name}, {' and '.join(pair)}", source))
        if len(found) == count:
            break
    return found


def _dedented(block: list[str]) -> list[str]:
    return textwrap.dedent("\n".join(block)).strip("\n").splitlines()


def mistakes_text(exercise: Exercise) -> str:
    """The text from which the exercise's known mistakes are read."""
    for info in pkgutil.iter_modules(exercises.__path__):
        module = importlib.import_module(f"autograder.exercises.{info.name}")
        if getattr(module, "EXERCISE", None) is not None and module.EXERCISE.name == exercise.name:
            own = getattr(module, "MISTAKES", None)
            siblings = [vars(found)["MISTAKES"] for found in vars(module).values() if hasattr(found, "MISTAKES")]
            return textwrap.dedent(own or siblings[0]).strip("\n")
    raise ValueError(exercise.name)


def drawn(made: list[Mutant], most: int) -> list[Mutant]:
    return random.Random(len(made)).sample(made, min(most, len(made)))


def report_names(names: list[str], most: int) -> None:
    """A table of how answers are named; `most`: mutants of an exercise that are looked at, drawn at random."""
    print(f"{'exercise':22}{'':14}{'right':>7}{'general':>9}{'careful':>9}{'wrong':>7}")
    total: dict[str, Counter] = {}
    for name in names:
        exercise = EXERCISES[name]
        kept = [Mutant(name, w.name, w.source) for w in exercise.wrong_answers]
        for what, made in (
            ("kept", kept),
            ("mutants", drawn(mutants(exercise), most)),
            ("combinations", combinations(exercise, 20)),
        ):
            said = [
                (m, s)
                for m, all_said in zip(made, run_all(made, naming))
                if isinstance(all_said, list)
                for s in all_said
            ]
            counts = Counter(s.partition(":")[0] for _, s in said)
            total[what] = total.get(what, Counter()) + counts
            print(
                f"{name:22}{what:14}{counts['right']:7}{counts['general']:9}{counts['careful']:9}{counts['wrong']:7}",
                flush=True,
            )
            for mutant, one in said:
                if one.startswith("wrong"):
                    print(f"    {mutant.what} is named {one[7:]}", flush=True)
    for what, counts in total.items():
        print(f"{'all':22}{what:14}{counts['right']:7}{counts['general']:9}{counts['careful']:9}{counts['wrong']:7}")


def equivalents() -> dict[str, str]:
    """What a mutant is called -> why it computes the same, from tests/equivalent.txt: two lines each."""
    lines = [line for line in EQUIVALENT.read_text("utf-8").splitlines() if line and not line.startswith("#")]
    return {lines[i]: lines[i + 1].strip() for i in range(0, len(lines), 2)}


def survivors(made: list[Mutant]) -> list[Mutant]:
    """Those that earn full points and are not listed as equivalent."""
    known = equivalents()
    fine = ("refused", "does not end", "has nothing to change")
    return [m for m, what in zip(made, run_all(made)) if what not in fine and m.what not in known]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0], epilog="example: python tests/mutation.py next_chunk"
    )
    parser.add_argument("exercise", nargs="*", help="an exercise; without it all of them, which takes half an hour")
    parser.add_argument("--names", action="store_true", help="how mistakes, mutants and pairs of mistakes are named")
    parser.add_argument("--most", type=int, default=10_000, metavar="N", help="with --names: N mutants an exercise")
    args = parser.parse_args()
    if unknown := set(args.exercise) - set(EXERCISES):
        parser.error(f"there is no exercise {', '.join(sorted(unknown))}; there are {', '.join(EXERCISES)}")
    names = args.exercise or list(EXERCISES)
    if args.names:
        report_names(names, args.most)
        return 0
    for name in names:
        made = mutants(EXERCISES[name])
        alive = survivors(made)
        print(f"{name}: {len(made)} mutants, {len(alive)} survive", flush=True)
        for mutant in alive:
            print(f"  {mutant.what}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
