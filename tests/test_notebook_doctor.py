"""The doctor says what is wrong in plain words, and its repair loses nothing and pleases nbgrader."""

import json
import os

import nbformat
import pytest
from nbgrader.nbgraderformat import read as nbgrader_read

from course_lib.cli import run_command
from course_lib.learner import doctor

STUB = 'def half(x):\n    """Half of x."""\n    raise NotImplementedError("Exercise 1.1: half")'
ANSWER = STUB.replace("raise Not", "return x / 2  # raise Not")
OTHER = STUB.replace("raise Not", "return x * 0.5  # raise Not")
CHECK, KINDS = 'check.half(half, group="values")', 'check.half(half, group="kinds")'


def cell(name, text, grade_id=None, kind="code", **notes):
    made = {"cell_type": kind, "id": name, "metadata": {}, "source": text.splitlines(keepends=True)}
    if kind == "code":
        made |= {"execution_count": None, "outputs": []}
    if grade_id:
        graded = "__" in grade_id
        flags = {"grade": graded, "solution": not graded, "locked": graded, "task": False}
        made["metadata"]["nbgrader"] = flags | {"grade_id": grade_id, "schema_version": 3} | notes
        made["metadata"]["deletable"] = False
    return made


def handed_out():
    cells = [
        cell("title", "# Halves", kind="markdown"),
        cell("half-solution", STUB, "half"),
        cell("half-values", CHECK, "half__values", points=2),
        cell("half-kinds", KINDS, "half__kinds", points=1),
        cell("end", "That is it.", kind="markdown"),
    ]
    metadata = {"chunked_prefill_course": {"source": "solutions/01_half.py"}, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A project with one released notebook and its index."""
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "01_half.ipynb").write_text(json.dumps(handed_out()))
    (tmp_path / "course_lib" / "assets").mkdir(parents=True)
    entry = {"name": "half", "number": "1.1", "title": "half", "notebook": "01_half", "points": 3}
    entry["grade_ids"] = ["half__values", "half__kinds"]
    (tmp_path / "course_lib" / "assets" / "exercises.json").write_text(json.dumps([entry]))
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    return tmp_path


@pytest.fixture
def mine(root):
    """Writes a learner's notebook: the one handed out, answered, and then changed by `change(notebook)`."""

    def write(change=lambda notebook: None, name="01_half.ipynb"):
        notebook = handed_out()
        notebook["cells"][1]["source"] = ANSWER
        change(notebook)
        path = root / "work" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(notebook), encoding="utf-8")
        return path

    return write


def look(path, *flags):
    return run_command("doctor", doctor.main, [str(path), *flags])


def texts(notebook):
    return sorted("".join(c["source"]) for c in notebook["cells"])


def graded(path):
    """grade id -> source, of a notebook that nbformat and nbgrader both accept."""
    nbformat.validate(nbformat.read(path, as_version=4))
    cells = nbgrader_read(path, as_version=4).cells
    return {c.metadata.nbgrader["grade_id"]: c.source for c in cells if "nbgrader" in c.metadata}


def repaired(path, capsys):
    """Repair `path`; the result is well, holds every text it held before, and the old file is kept."""
    before, old = path.read_bytes(), json.loads(path.read_text(encoding="utf-8-sig"))
    assert look(path) == 1 and path.read_bytes() == before  # looking changes nothing
    assert "--fix" in capsys.readouterr().out
    assert look(path, "--fix") == 0
    said = capsys.readouterr().out
    assert path.with_name(path.name + ".bak").read_bytes() == before
    new = json.loads(path.read_text(encoding="utf-8"))
    remaining = texts(new)
    for text in texts(old):
        remaining.remove(text)
    assert look(path) == 0, capsys.readouterr().out
    return new, said


# ---- notebooks that are well


def test_a_notebook_as_handed_out_and_an_answered_one_are_well(mine, root, capsys):
    assert look(mine()) == look(root / "notebooks" / "01_half.ipynb") == 0
    assert "5 cells, 3 known to nbgrader" in capsys.readouterr().out


def test_own_cells_and_another_name_are_no_fault(mine):
    def add(notebook):
        notebook["cells"].insert(2, cell("own", "half(3)"))
        notebook["cells"].append(cell("draft", "def helper(x):\n    return x"))

    assert look(mine(add, name="Copy of 01_half (1).ipynb")) == 0


def test_another_notebook_is_well_where_nothing_is_known_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "ROOT", tmp_path / "nowhere")
    notebook = {"cells": [cell("a", "1 + 1")], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "own.ipynb").write_text(json.dumps(notebook))
    assert look(tmp_path / "own.ipynb") == 0


# ---- copied cells


def insert(*cells_and_places):
    def change(notebook):
        for place, text, *rest in cells_and_places:
            made = cell("half-solution", text, "half") if not rest else cell("half-values", text, rest[0], points=2)
            notebook["cells"].insert(place, made)

    return change


@pytest.mark.filterwarnings("ignore:Non-unique cell id")  # nbformat's, about the damage that is the point here
def test_of_an_answer_and_an_untouched_copy_the_answer_stays_and_the_copy_does_not_run(mine, capsys):
    for place in (1, 2, 5):  # above the answer, between it and the check, at the end
        path = mine(insert((place, STUB)), name=f"copy{place}.ipynb")
        with pytest.raises(Exception, match="half"):
            graded(path)
        new, _ = repaired(path, capsys)
        assert graded(path)["half"] == ANSWER
        (stub,) = [c for c in new["cells"] if "".join(c["source"]) == STUB]
        assert stub["cell_type"] == "raw" and "outputs" not in stub and "nbgrader" not in stub["metadata"]


def test_of_two_equal_copies_one_is_left_to_nbgrader(mine, capsys):
    path = mine(insert((2, ANSWER)))
    new, _ = repaired(path, capsys)
    assert graded(path)["half"] == ANSWER
    assert [c["cell_type"] for c in new["cells"] if "".join(c["source"]) == ANSWER] == ["code", "code"]


def test_of_two_different_answers_both_stay_code_and_the_one_that_counts_is_named(mine, capsys):
    path = mine(insert((2, OTHER), (6, ANSWER + "  # late")))
    new, said = repaired(path, capsys)
    assert graded(path)["half"] == OTHER  # runs last before the check
    assert "3 different answers" in said and "runs last before the check" in said
    assert [c["cell_type"] for c in new["cells"] if "def half" in "".join(c["source"])] == ["code"] * 3


def test_without_the_released_notebook_a_stub_is_known_by_its_reminder(mine, root, capsys):
    (root / "notebooks" / "01_half.ipynb").unlink()
    path = mine(
        lambda n: (
            n["cells"].insert(2, cell("half-solution", STUB, "half"))
            or n["cells"].__setitem__(1, cell("half-solution", "def half(x):\n    return x / 2", "half"))
        )
    )
    repaired(path, capsys)
    assert graded(path)["half"] == "def half(x):\n    return x / 2"


# ---- answers that are classes


CLASS = '''from collections.abc import Sequence


class Half:
    """Halves numbers."""

    def __init__(self, x):
        """Keep x."""
        raise NotImplementedError("Exercise 1.2: write Half")

    def get(self):
        """Half of x."""
        raise NotImplementedError("Exercise 1.2: write Half")'''
PARTLY = CLASS.replace('raise NotImplementedError("Exercise 1.2: write Half")', "self.x = x", 1)
WRITTEN = PARTLY.replace('raise NotImplementedError("Exercise 1.2: write Half")', "return self.x / 2")
CLASS_CHECK = 'check.Half(Half, group="calls")'


@pytest.fixture(params=["released", "not at hand"])
def class_root(request, root):
    """A project with a class to write; its notebook as handed out is there, or only the index."""
    notebook = handed_out()
    notebook["cells"][1:4] = [cell("a", CLASS, "Half"), cell("b", CLASS_CHECK, "Half__calls", points=2)]
    if request.param == "released":
        (root / "notebooks" / "01_half.ipynb").write_text(json.dumps(notebook))
    else:
        (root / "notebooks" / "01_half.ipynb").unlink()
    entry = {"name": "Half", "number": "1.2", "title": "Half", "notebook": "01_half", "points": 2}
    index = [entry | {"grade_ids": ["Half__calls"]}]
    (root / "course_lib" / "assets" / "exercises.json").write_text(json.dumps(index))
    return root


def with_classes(root, *sources, name="01_half.ipynb"):
    """A notebook with these texts as copies of the answer's cell, above the check."""
    notebook = handed_out()
    copies = [cell(f"copy{n}", source, "Half") for n, source in enumerate(sources)]
    notebook["cells"][1:4] = [*copies, cell("b", CLASS_CHECK, "Half__calls", points=2)]
    path = root / "work" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(notebook), encoding="utf-8")
    return path


@pytest.mark.parametrize("answer", [CLASS, PARTLY, WRITTEN], ids=["stub", "partly", "written"])
def test_a_notebook_whose_answer_is_a_class_is_well_in_every_state(class_root, answer):
    assert look(with_classes(class_root, answer)) == 0


@pytest.mark.parametrize("answer", [PARTLY, WRITTEN], ids=["partly", "written"])
@pytest.mark.parametrize("stub_first", [True, False])
def test_beside_an_untouched_class_a_written_one_is_the_answer_even_if_methods_are_missing(
    class_root, answer, stub_first, capsys
):
    sources = (CLASS, answer) if stub_first else (answer, CLASS)
    path = with_classes(class_root, *sources)
    new, said = repaired(path, capsys)
    assert graded(path)["Half"] == answer and "an untouched copy became a raw cell" in said
    assert [c["cell_type"] for c in new["cells"] if "".join(c["source"]) == answer] == ["code"]


def test_of_a_partly_and_a_fully_written_class_both_stay_code(class_root, capsys):
    path = with_classes(class_root, PARTLY, WRITTEN)
    new, said = repaired(path, capsys)
    assert graded(path)["Half"] == WRITTEN and "2 different answers" in said
    assert [c["cell_type"] for c in new["cells"] if "class Half" in "".join(c["source"])] == ["code", "code"]


@pytest.mark.parametrize(
    "answer", [PARTLY, WRITTEN.replace("class Half:", "class Half(object):")], ids=["partly", "derived"]
)
def test_a_class_that_has_lost_its_notes_gets_them_back(class_root, answer, capsys):
    path = with_classes(class_root, answer)
    notebook = json.loads(path.read_text())
    for made in notebook["cells"]:
        made["metadata"] = {}
    notebook["metadata"] = {}
    path = path.with_name("Untitled.ipynb")
    path.write_text(json.dumps(notebook))
    if not (class_root / "notebooks" / "01_half.ipynb").exists():
        assert look(path) == 1
        assert "the cell `class Half" in (said := capsys.readouterr().out) and "has lost it" in said
        return
    repaired(path, capsys)
    assert graded(path) == {"Half": answer, "Half__calls": CLASS_CHECK}


def test_a_class_that_is_no_python_is_an_answer_and_no_stub(class_root, capsys):
    broken = PARTLY.replace("def get(self):", "def get(self)")
    path = with_classes(class_root, CLASS, broken)
    repaired(path, capsys)
    assert graded(path)["Half"] == broken


def test_the_courses_own_classes_are_known_to_the_doctor(tmp_path, capsys):
    """Each answer of the course that is a class, in a notebook without any notes."""
    from course_lib.learner import doctor as real

    notebook = json.loads((real.ROOT / "notebooks" / "07_prefix_cache.ipynb").read_text())
    names = [c["metadata"]["nbgrader"]["grade_id"] for c in notebook["cells"] if c["metadata"].get("nbgrader")]
    for made in notebook["cells"]:
        made["metadata"] = {}
    notebook["metadata"] = {}
    path = tmp_path / "Untitled.ipynb"
    path.write_text(json.dumps(notebook))
    assert look(path) == 1
    said = capsys.readouterr().out
    for name in names:
        assert f"has lost nbgrader's notes ({name})" in said
    assert "class Allocator" in said and "is gone" not in said


def test_of_a_copied_check_the_one_as_handed_out_is_kept(mine, capsys):
    path = mine(insert((2, "check.half(lambda x: x / 2)", "half__values")))
    new, _ = repaired(path, capsys)
    assert graded(path)["half__values"] == CHECK
    assert not new["cells"][2]["metadata"]


# ---- lost, damaged and wild


def test_lost_nbgrader_notes_come_back(mine, capsys):
    def lose(notebook):
        for made in notebook["cells"]:
            made["metadata"] = {}
        notebook["metadata"] = {}

    path = mine(lose, name="Untitled.ipynb")
    new, _ = repaired(path, capsys)
    assert graded(path) == {"half": ANSWER, "half__values": CHECK, "half__kinds": KINDS}
    assert [c["metadata"]["nbgrader"].get("points") for c in new["cells"][1:4]] == [None, 2, 1]


def test_when_notes_are_lost_the_answer_gets_them_and_not_a_stub_beside_it(mine, capsys):
    def lose(notebook):
        notebook["cells"].insert(2, cell("other", STUB))
        notebook["cells"][1]["metadata"] = {}

    path = mine(lose)
    new, _ = repaired(path, capsys)
    assert graded(path)["half"] == ANSWER
    assert new["cells"][2]["cell_type"] == "raw"


def test_a_deleted_check_is_put_back_where_it_was(mine, capsys):
    path = mine(lambda notebook: notebook["cells"].pop(2))
    new, _ = repaired(path, capsys)
    assert [c["id"] for c in new["cells"]] == ["title", "half-solution", "half-values", "half-kinds", "end"]


def test_what_cannot_be_restored_is_said_and_the_file_left_alone(mine, root, capsys):
    (root / "notebooks" / "01_half.ipynb").unlink()
    path = mine(lambda notebook: notebook["cells"][2].update(metadata={}))
    before = path.read_bytes()
    assert look(path, "--fix") == 1 and path.read_bytes() == before
    assert "half__values" in (said := capsys.readouterr().out) and "fresh copy" in said
    (root / "course_lib" / "assets" / "exercises.json").unlink()
    assert look(path) == 0  # now nothing is known that could be missing


@pytest.mark.parametrize("version", [99, 1, "3", None, 3.5])
def test_a_wild_schema_version_is_corrected(mine, capsys, version):
    path = mine(lambda notebook: notebook["cells"][1]["metadata"]["nbgrader"].update(schema_version=version))
    _, said = repaired(path, capsys)
    assert "schema_version" in said
    assert graded(path)["half"] == ANSWER


@pytest.mark.parametrize("notes", [{}, None, [], {"grade": True}, {"grade_id": 7}])
def test_empty_nbgrader_notes_go(mine, capsys, notes):
    path = mine(lambda notebook: notebook["cells"][0]["metadata"].update(nbgrader=notes))
    repaired(path, capsys)
    assert set(graded(path)) == {"half", "half__values", "half__kinds"}


def test_a_check_turned_into_a_solution_is_turned_back(mine, capsys):
    changed = {"grade": False, "solution": True, "locked": False, "points": None}
    path = mine(lambda notebook: notebook["cells"][2]["metadata"]["nbgrader"].update(changed))
    new, _ = repaired(path, capsys)
    notes = new["cells"][2]["metadata"]["nbgrader"]
    assert (notes["grade"], notes["solution"], notes["locked"], notes["points"]) == (True, False, True, 2)


def test_repeated_missing_and_malformed_cell_ids_get_new_ones_and_the_graded_cell_keeps_its_own(mine, capsys):
    def spoil(notebook):
        notebook["cells"].insert(0, cell("half-solution", "a copy"))
        notebook["cells"] += [cell("end", "b"), cell("not ok!", "c"), cell(["x"], "d")]
        del notebook["cells"][1]["id"]

    path = mine(spoil)
    new, _ = repaired(path, capsys)
    ids = [c["id"] for c in new["cells"]]
    assert len(set(ids)) == len(ids) and ids[2:6] == ["half-solution", "half-values", "half-kinds", "end"]


def test_what_colab_leaves_of_widgets_is_removed(mine, capsys):
    state = {"application/vnd.jupyter.widget-state+json": {"abc": {"model_name": "IntSlider"}}}
    new, _ = repaired(mine(lambda notebook: notebook["metadata"].update(widgets=state)), capsys)
    assert "widgets" not in new["metadata"]


def test_a_byte_order_mark_is_removed(mine, capsys):
    path = mine()
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    repaired(path, capsys)


def test_missing_metadata_and_a_wild_format_number_are_corrected(mine, capsys):
    def spoil(notebook):
        del notebook["cells"][0]["metadata"]
        notebook["metadata"] = None
        notebook["nbformat_minor"] = "5"

    repaired(mine(spoil), capsys)


def test_no_earlier_backup_is_overwritten(mine, capsys):
    path = mine(insert((2, ANSWER)))
    path.with_name(path.name + ".bak").write_text("precious")
    assert look(path, "--fix") == 0
    assert path.with_name(path.name + ".bak").read_text() == "precious"
    assert path.with_name(path.name + ".bak1").is_file()
    assert sorted(p.name for p in path.parent.iterdir()) == [path.name, path.name + ".bak", path.name + ".bak1"]


# ---- notebooks without cell ids, and with what JSON can hold but a notebook cannot


def without_ids(notebook):
    notebook["nbformat_minor"] = 4
    for made in notebook["cells"]:
        del made["id"]


def sources(notebook):
    return ["".join(c["source"]) for c in notebook["cells"]]


def test_a_cell_put_back_where_cells_have_no_ids_gets_none_and_stands_before_its_check(mine, capsys):
    def lose(notebook):
        without_ids(notebook)
        del notebook["cells"][1]

    new, _ = repaired(mine(lose), capsys)
    assert sources(new) == ["# Halves", STUB, CHECK, KINDS, "That is it."]
    assert not [c for c in new["cells"] if "id" in c]
    assert graded(mine(lose).parent / "01_half.ipynb.bak")["half__kinds"] == KINDS  # as it was, which is valid


def test_a_stub_is_put_before_its_check_even_if_the_check_has_lost_its_notes(mine, capsys):
    def lose(notebook):
        without_ids(notebook)
        del notebook["cells"][1]
        notebook["cells"][1]["metadata"] = {}

    path = mine(lose)
    new, _ = repaired(path, capsys)
    assert sources(new) == ["# Halves", STUB, CHECK, KINDS, "That is it."]
    assert graded(path) == {"half": STUB, "half__values": CHECK, "half__kinds": KINDS}


def test_cell_ids_where_the_format_knows_none_are_removed(mine, capsys):
    path = mine(lambda notebook: notebook.update(nbformat_minor=4))
    with pytest.raises(nbformat.ValidationError):
        graded(path)
    _, said = repaired(path, capsys)
    assert "5 of its cells have an id, which format 4.4 does not know" in said
    assert graded(path)["half"] == ANSWER


@pytest.mark.parametrize("odd", [[1], {"a": 1}, 7], ids=str)
def test_an_odd_cell_id_beside_a_lost_cell_is_no_obstacle(mine, capsys, odd):
    def spoil(notebook):
        del notebook["cells"][2]
        notebook["cells"][0]["id"] = odd

    path = mine(spoil)
    new, _ = repaired(path, capsys)
    assert sources(new)[2] == CHECK and set(graded(path)) == {"half", "half__values", "half__kinds"}


def test_half_of_a_two_part_character_is_replaced_and_a_whole_one_stays(mine, capsys):
    def spoil(notebook):
        notebook["cells"][0]["source"] = "whole: \U0001f600"
        notebook["cells"].append(cell("mine", "from course_lib.masks import a  # \ud800"))

    path = mine(spoil)
    path.write_text(json.dumps(json.loads(path.read_text())))  # all as \uXXXX
    assert "\\ud800" in path.read_text() and "\\ud83d" in path.read_text()
    assert look(path) == 1 and look(path, "--fix") == 0 and look(path) == 0
    assert "half of a two-part character" in capsys.readouterr().out
    new = json.loads(path.read_text(encoding="utf-8"))
    assert sources(new)[0] == "whole: \U0001f600"
    assert sources(new)[-1] == "from course_lib.attention.mask import a  # \ufffd"


def test_outputs_that_are_nested_too_deeply_are_refused_in_one_line_and_leave_no_backup(mine, capsys):
    def spoil(notebook):
        notebook["cells"][1]["outputs"] = ["DEEP"]
        del notebook["cells"][0]["metadata"]

    path = mine(spoil)
    path.write_text(path.read_text().replace('"DEEP"', "[" * 900 + "]" * 900))
    assert look(path, "--fix") == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1 and "Clear Outputs of All Cells" in err
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.skipif(os.name == "nt", reason="makes symbolic links")
def test_a_link_stays_a_link_and_the_notebook_behind_it_is_repaired(mine, root, capsys):
    target = mine(lambda notebook: notebook["cells"][1].update(metadata={}))
    link = root / "link.ipynb"
    link.symlink_to(target.relative_to(root))
    before = target.read_bytes()
    (target.parent / "01_half.ipynb.bak").symlink_to("nowhere")
    assert look(link, "--fix") == 0
    assert link.is_symlink() and graded(target)["half"] == ANSWER
    backup = target.parent / "01_half.ipynb.bak1"
    assert backup.read_bytes() == before and str(backup) in capsys.readouterr().out
    assert not (target.parent / "nowhere").exists()


# ---- a copy from before modules moved


def test_old_imports_get_their_names_of_today_and_the_rest_of_the_cell_stays(mine, capsys):
    text = "%matplotlib inline\nfrom course_lib.masks import chunk_attention_mask  # mine\nprint('course_lib.masks')"

    def add(notebook):
        notebook["cells"].insert(1, cell("setup", text))
        notebook["cells"].append(cell("more", "import course_lib.rope") | {"source": "import course_lib.rope"})
        notebook["cells"].append(cell("words", "from course_lib import masks", kind="markdown"))

    path = mine(add)
    before = path.read_bytes()
    assert look(path) == 1 and path.read_bytes() == before
    said = capsys.readouterr().out
    assert "course_lib.masks is now course_lib.attention.mask" in said and "--fix" in said
    assert look(path, "--fix") == 0 and path.with_name(path.name + ".bak").read_bytes() == before
    assert "course_lib.rope is now course_lib.positions: wrote the new ones" in capsys.readouterr().out
    new, old = json.loads(path.read_text()), json.loads(before)
    new["cells"][1]["source"][1] = text.split("\n")[1] + "\n"
    assert new["cells"][6]["source"] == "import course_lib.positions"
    new["cells"][6]["source"] = "import course_lib.rope"
    assert new == old
    assert look(path) == 0


def test_an_old_import_in_a_cell_that_is_no_python_is_named_and_left_to_the_learner(mine, capsys):
    path = mine(lambda notebook: notebook["cells"].append(cell("mine", "from course_lib.masks import a\nx = (1,")))
    before = path.read_bytes()
    assert look(path, "--fix") == 1 and path.read_bytes() == before
    said = capsys.readouterr().out
    assert "`from course_lib.masks import a`" in said and "cannot be read as Python" in said


# ---- files that are no notebooks


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b'{"cells": [', "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[1, 2]", "no notebook"),
        (b'{"metadata": {}}', "no notebook"),
        (b'{"cells": [1]}', "no cells"),
        (b'{"worksheets": [], "nbformat": 3}', "nbconvert"),
        ('{"cells": "\xe9"}'.encode("latin-1"), "not UTF-8"),
        (b'{\n<<<<<<< HEAD\n "cells": []\n=======\n>>>>>>> theirs\n}', "conflict marks"),
    ],
)
def test_what_is_no_notebook_is_refused_in_one_line_and_left_alone(tmp_path, capsys, content, says):
    path = tmp_path / "x.ipynb"
    path.write_bytes(content)
    for flags in ((), ("--fix",)):
        assert look(path, *flags) == 2
        out, err = capsys.readouterr()
        assert out == "" and len(err.splitlines()) == 1 and says in err
    assert path.read_bytes() == content and len(list(tmp_path.iterdir())) == 1


def test_jupyters_own_older_copy_is_pointed_to(tmp_path, capsys):
    (tmp_path / ".ipynb_checkpoints").mkdir()
    (tmp_path / ".ipynb_checkpoints" / "x-checkpoint.ipynb").write_text("{}")
    (tmp_path / "x.ipynb").write_text('{"cells": [')
    assert look(tmp_path / "x.ipynb") == 2
    assert "x-checkpoint.ipynb" in capsys.readouterr().err
