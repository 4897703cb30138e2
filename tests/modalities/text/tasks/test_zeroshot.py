"""Labels without training: what is not read, or says nothing, is told of."""

import json

import pytest

from commands import run
from text_corpus import MODEL_SLOTS, made_model
from unmask.errors import UserError
from unmask.modalities.text.network.folder import load_folder, save_folder
from unmask.modalities.text.tasks.finetune import finetune
from unmask.modalities.text.tasks.network import leave_masked_head_out
from unmask.modalities.text.tasks.zeroshot import zero_shot

LABELS = ["rows", "readers"]
LONG = "the quick brown fox " * MODEL_SLOTS
QUICK = {"start": "plain", "steps": 1, "precision": "fp32"}


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    made_model(folded=True).save(folder := tmp_path_factory.mktemp("masked") / "m")
    return folder


@pytest.fixture(scope="module")
def nli(masked, tmp_path_factory):
    folder = tmp_path_factory.mktemp("nli") / "m"
    data = [("the fox", f"it is {i}", ("entailment", "contradiction")[i % 2]) for i in range(12)]
    finetune(masked, data, task="classify", out=folder, **QUICK)
    return folder


@pytest.mark.parametrize("kind", ["masked", "nli"])
def test_texts_that_are_cut_are_told_of_and_counted(request, kind):
    said: list[str] = []
    texts = ["The quick brown fox.", LONG, LONG + "dog"]
    about = zero_shot(request.getfixturevalue(kind), texts, LABELS, precision="fp32", say=said.append).about
    assert about["cut"] == 2
    [line] = said
    assert line.startswith("warning: 2 of 3 texts are longer than ")
    assert line.endswith("tokens: their ends are not read")
    about = zero_shot(request.getfixturevalue(kind), texts[:1], LABELS, precision="fp32", say=said.append).about
    assert (about["cut"], len(said)) == (0, 1)


@pytest.mark.parametrize("kind", ["masked", "nli"])
def test_the_number_told_of_is_that_from_which_an_end_is_not_read(request, kind):
    folder, said = request.getfixturevalue(kind), []
    tokenizer = made_model(folded=True).tokenizer
    zero_shot(folder, [LONG], LABELS, precision="fp32", say=said.append)
    room = int(said[0].split(" longer than ")[1].split()[0])
    ids = tokenizer.encode([LONG], specials=False)[0]
    fits, longer = (LONG[: ids.offsets[n - 1, 1]] for n in (room, room + 1))
    rows = zero_shot(folder, [fits, longer], LABELS, precision="fp32")
    assert rows.about["cut"] == 1
    assert rows[1]["probabilities"] == pytest.approx(rows[0]["probabilities"], abs=1e-6)


def test_the_shortest_room_of_several_templates_counts(masked):
    templates = ["{text} It was [MASK].", "The quick brown fox jumps over {text} and it was all in all [MASK]."]
    said: list[str] = []
    zero_shot(masked, [LONG], LABELS, template=templates[1], precision="fp32", say=said.append)
    zero_shot(masked, [LONG], LABELS, template=templates, precision="fp32", say=said.append)
    assert said[0] == said[1]


@pytest.mark.parametrize("kind", ["masked", "nli"])
@pytest.mark.parametrize("calibrate", ["batch", "none"])
def test_blank_texts_have_no_label_and_change_none(request, kind, calibrate):
    folder, said = request.getfixturevalue(kind), []
    some, emoji = ["The quick brown fox.", "Stop."], "\N{GRINNING FACE}"
    texts = [some[0], "", some[1], " \n", emoji]
    rows = zero_shot(folder, texts, LABELS, calibrate=calibrate, precision="fp32", say=said.append)
    nothing = {"label": None, "probability": None, "probabilities": None}
    assert [rows[i] for i in (1, 3, 4)] == [{"text": text} | nothing for text in ("", " \n", emoji)]
    unknown, line = said
    assert unknown.startswith("warning: 1 of 5 texts hold words or characters that the model does not know")
    assert line.startswith("3 of 5 texts are blank or hold no token that the model knows (text 2, text 4, text 5)")
    alone = zero_shot(folder, some, LABELS, calibrate=calibrate, precision="fp32")
    for found, one in zip([rows[0], rows[2]], alone, strict=True):
        assert found["probabilities"] == pytest.approx(one["probabilities"], abs=1e-6)
    rows = zero_shot(folder, ["", " "], LABELS, calibrate=calibrate, precision="fp32")
    assert [row["label"] for row in rows] == [None, None]
    assert rows.about["cut"] == 0


def test_a_label_without_words_and_a_template_without_room_are_refused(masked):
    with pytest.raises(UserError, match=r"(?s)label 'rows': no word.*verbalisers="):
        zero_shot(masked, ["a fox"], LABELS, verbalisers={"rows": []})
    with pytest.raises(UserError, match=r"no room for a text.*the model takes 64"):
        zero_shot(masked, ["a fox"], LABELS, template="the fox " * MODEL_SLOTS + "{text} [MASK]")


def test_words_for_a_model_that_asks_no_blank_are_refused(nli):
    with pytest.raises(UserError, match="words for label 'rows' of an NLI model"):
        zero_shot(nli, ["a fox"], LABELS, verbalisers={"rows": ["row", "line"]})


def test_the_command_says_the_same(masked, tmp_path, capsys):
    labels = ["--label", "rows", "--label", "readers"]
    (tmp_path / "t.txt").write_text(f"a fox\n\n{LONG}\n")
    code, out, error = run(capsys, "zeroshot", masked, tmp_path / "t.txt", *labels, "--json")
    found = json.loads(out)
    assert (code, found["cut"], found["results"][1]["label"]) == (0, 1, None)
    assert "1 of 3 texts are longer than" in error
    assert "1 of 3 texts are blank or hold no token that the model knows (text 2): their labels are null" in error
    code, out, _ = run(capsys, "zeroshot", masked, tmp_path / "t.txt", *labels)
    assert (code, out.splitlines()[1].split()) == (0, ["-", "-"])
    code, _, error = run(capsys, "zeroshot", masked, "a fox", *labels, "--words", "rows=")
    assert (code, "'rows': no word" in error, "--words" in error) == (2, True, True), error
    code, _, error = run(capsys, "zeroshot", masked, "", *labels)
    assert (code, "the text is empty" in error) == (2, True), error


@pytest.mark.parametrize(
    ("labels", "more", "told"),
    [
        (["good", "bad"], {"verbalisers": {"gud": ["great"]}}, "words for 'gud', which is no label"),
        (["good", "[SEP]"], {}, r"label '\[SEP\]': .* holds \[SEP\]"),
        (["fox", "Fox"], {}, "labels 'fox' and 'Fox': the same tokens"),
        (["fox", "dog"], {"calibrate": "batch"}, "calibrate='batch' of one text"),
        ("fox", {}, "1 labels"),
        (["fox", "dog"], {"priors": []}, "priors"),
        (["fox", None], {}, r"labels\[1\] is None"),
    ],
)
def test_labels_that_cannot_be_answers_are_refused(masked, labels, more, told):
    with pytest.raises(UserError, match=told):
        zero_shot(masked, "the quick fox", labels, **more)


def test_a_word_for_a_label_is_a_word(masked):
    listed = zero_shot(masked, "the fox", ["fox", "dog"], verbalisers={"fox": ["quick"], "dog": ["lazy"]})
    assert zero_shot(masked, "the fox", ["fox", "dog"], verbalisers={"fox": "quick", "dog": "lazy"}) == listed
    shared = {"fox": ["quick", "brown"], "dog": ["lazy", "brown"]}  # they differ in one word
    assert zero_shot(masked, "the fox", ["fox", "dog"], verbalisers=shared)[0]["label"] in ("fox", "dog")


def test_a_masked_lm_head_that_the_folder_lacks_is_asked_for_nothing(masked, tmp_path, capsys):
    """What stands in its place is drawn at random: no labels come of it, and SimCSE's share of it is not kept."""
    leave_masked_head_out(text := load_folder(masked))
    save_folder(
        encoder := tmp_path / "encoder",
        model=text.model,
        tokenizer=text.tokenizer,
        family=text.family,
        without=text.random,
    )
    said, states = [], []
    for name in ("a", "b"):
        finetune(encoder, ["the fox", "the dog"], task="similarity", out=tmp_path / name, say=said.append, **QUICK)
        states.append((tmp_path / name / "model.safetensors").read_bytes())
    assert states[0] == states[1]
    assert f"{encoder}: no masked-LM head; that of mlm_weight is learnt from scratch and not kept" in said
    for folder in (encoder, tmp_path / "a"):
        with pytest.raises(UserError, match="no masked-LM head"):
            zero_shot(folder, ["the fox"], LABELS)
    code, _, errors = run(capsys, "zeroshot", encoder, "the fox", "--label", "rows", "--label", "readers")
    assert (code, "unmask adapt" in errors) == (2, True)
