"""Words, sentences and overlap of texts in any script."""

import unicodedata
from types import SimpleNamespace

import numpy as np
import pytest

from unmask.modalities.text.tasks.baselines import fit_cosine, fit_words, overlaps
from unmask.modalities.text.tasks.scorers import squad_exact, squad_f1
from unmask.modalities.text.tokens.tokenizer import Tokenizer
from unmask.modalities.text.tokens.words import sentence_ends, sentences, with_pairs, words

TWO = {  # two sentences of each script, and a question about the second
    "de": ("Schöne Grüße aus Köln.", " Der Zoé gehört das Haus.", "Wem gehört das Haus?"),
    "hi": ("मैं दिल्ली में रहता हूँ।", " किताब मेज़ पर रखी है।", "मेज़ पर क्या रखी है?"),
    "zh": ("今天天气很好。", "长江全长约六千三百公里。", "长江有多长？"),
    "ja": ("昨日は雨でした。", "東京タワーの高さは三百三十三メートルです。", "東京タワーの高さは？"),
    "th": ("วันนี้อากาศดี", " แมวอยู่ในบ้าน", "แมวอยู่ที่ไหน"),
    "ar": ("ذَهَبَ الوَلَدُ؟", " القِطَّةُ في البَيْتِ.", "أين القِطَّةُ؟"),
}


@pytest.mark.parametrize("script", TWO)
def test_words_keep_their_marks(script):
    """Nothing is lost between the words but spaces and punctuation."""
    text = "".join(TWO[script])
    kept = [c for c in text.lower() if not c.isspace() and unicodedata.category(c)[0] not in "PS"]
    assert "".join(words(text)) == "".join(kept)


@pytest.mark.parametrize("script", TWO)
def test_a_question_finds_its_sentence(script):
    first, second, question = TWO[script]
    context = first + second
    assert [context[a:b] for a, b in sentences(context)] == [first, second.strip()]
    _, found = overlaps(question, context)
    assert found[1] > found[0]


def test_sentences_of_english():
    text = 'He said "no." Then Dr. Who left, at 3.5 km/h!  Was it "so?" he asked. Yes'
    assert [text[a:b] for a, b in sentences(text)] == [
        'He said "no."',
        "Then Dr. Who left, at 3.5 km/h!",
        'Was it "so?" he asked.',
        "Yes",
    ]
    assert sentences("") == [(0, 0)]


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("it rained all day long. nobody came, and nothing was heard.", " nobody came, and nothing was heard."),
        ("Er kam am 3. Mai. Dann ging er.", " Dann ging er."),
        ("Vino ayer. ¿Quién?", " ¿Quién?"),
        ("यह एक वाक्य है। यह दूसरा है।", " यह दूसरा है।"),
        ("วันนี้อากาศดี แมวอยู่ในบ้าน", " แมวอยู่ในบ้าน"),
    ],
)
def test_a_sentence_ends(text, last):
    ends = [end for end in sentence_ends(text) if end < len(text)]
    assert [text[end:] for end in ends] == [last]


def test_a_line_ends_a_sentence_where_it_is_asked_for():
    text = "bread, milk etc.\n\nand so on\nOf this"
    assert list(sentence_ends(text)) == []
    assert [text[end:] for end in sentence_ends(text, lines=True)] == ["and so on\nOf this", "Of this"]


@pytest.mark.parametrize(
    ("guess", "truth", "f1"),
    [
        ("三百七十万", "约三百七十万", 10 / 11),
        ("三百七十万。", "三百七十万", 1.0),
        ("แมว", "แมวดำ", 2 * (3 / 5) / (1 + 3 / 5)),
        ("東京", "大阪", 0.0),
        ("दिल्ली में।", "दिल्ली", 2 / 3),
        ("the cat sat", "A cat sat down", 0.8),
        ("don't, “so”", "dont “so”", 1.0),
    ],
)
def test_answers_share_words_or_characters(guess, truth, f1):
    assert squad_f1(guess, [truth]) == pytest.approx(f1, abs=1e-12)
    assert squad_exact(guess, [truth]) == (f1 == 1.0)


@pytest.mark.parametrize("script", TWO)
def test_the_rule_beside_a_classifier_reads_the_script(script):
    """Of two topics: counts of words must tell them, as pairs of characters do."""
    rng = np.random.default_rng(0)
    phrases = {
        "de": (["schöne Grüße", "über Köln", "große Städte"], ["schone dich", "uber alles", "grosse Stadt"]),
        "hi": (["में घर", "की किताब", "हैं वे"], ["मैं घर", "का किताब", "हूँ वे"]),
        "zh": (["天气很好", "阳光明媚", "适合出游"], ["股票大跌", "市场低迷", "投资失败"]),
        "ja": (["天気がいい", "散歩に行く", "花が咲く"], ["株が下がる", "市場が荒れる", "損をした"]),
        "th": (["อากาศดี", "ดอกไม้บาน", "เดินเล่น"], ["หุ้นตก", "ตลาดซบเซา", "ขาดทุน"]),
        "ar": (["كَتَبَ", "دَرَسَ", "قَرَأَ"], ["كُتُب", "دَرْس", "قُرْآن"]),
    }[script]
    rows = []  # one phrase of a topic, and numbers
    for _ in range(120):
        topic = int(rng.integers(2))
        noise = [str(rng.integers(1000)) for _ in range(2)]
        joint = "" if script in ("zh", "ja", "th") else " "
        rows.append((joint.join(rng.permutation([str(rng.choice(phrases[topic])), *noise])), topic))
    items = [SimpleNamespace(text=text, text2=None) for text, _ in rows]
    target = np.array([topic for _, topic in rows])
    one_hot = np.eye(2, dtype=np.float32)[target[:80]]
    model = fit_words(items[:80], one_hot, "single", strength=10.0)
    assert model is not None
    right = (np.asarray(model.of_texts(items[80:])).argmax(1) == target[80:]).mean()
    assert right >= 0.95


def test_the_cosine_of_chinese_texts_knows_pairs():
    items = [
        SimpleNamespace(text="今天天气很好", text2="天气很好今天"),
        SimpleNamespace(text="天今气好很天", text2="今天天气很好"),
    ]
    model = fit_cosine(items)
    assert model is not None
    alike, mixed = model.of_texts(items)[:, 0]
    assert alike > mixed + 0.2


@pytest.mark.parametrize("script", ["zh", "ja", "th"])
def test_whole_words_are_no_sentences(script):
    """A unit is a token where no spaces part words."""
    text = "".join(TWO[script][:2])
    made = Tokenizer.train([text] * 5, vocab_size=10, min_frequency=1)  # characters
    e = made.encode([text])[0]
    assert len(set(e.units[e.units >= 0])) > 8
    assert with_pairs(words("今天")) == ["今", "天", "今天"]
