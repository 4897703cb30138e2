"""Text verbs in the words that clients speak already: OpenAI's embeddings, Cohere's and Jina's reranking,
text-embeddings-inference, and the tasks of `huggingface_hub.InferenceClient`.

What a client may send and the model does not do is refused, not passed over.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.modalities.text.tasks.pipelines import best_answers, blanks, entities, ranked, template_of
from unmask.modalities.text.tokens.tokenizer import Tokenizer
from unmask.serving.shapes import REQUIRED, Either, Field, Flag, ListOf, Number, Open, Record, Shape, Text
from unmask.serving.verbs import Verb, adapted, chosen_by_shape, records

HUB = {
    "fill": "fill-mask",
    "classify": "text-classification",
    "tag": "token-classification",
    "answer": "question-answering",
    "zeroshot": "zero-shot-classification",
    "embed": "feature-extraction",
    "similarity": "sentence-similarity",
}
"""Verb -> task of the hub; the first one that a model has is what it is for."""
TEXTS = Either((Text(), ListOf(Text())), "a text or a list of texts")
PAIR = Record(text=Field(Text()), text_pair=Field(Text()))
RAW_SCORES = Field(Flag(), "Not done: scores are given as the model means them.", False)
RIGHT = Field(Text(known=("right", "Right")), "Texts are cut at their end.", None)
LABELLED = ListOf(Record(label=Field(Text()), score=Field(Number(0, 1))))


def of(
    verbs: Mapping[str, Verb], tokenizer: Tokenizer, relevance: Callable[[Any], float] | None = None
) -> tuple[dict[str, Verb], str]:
    """The dialects of a model with these verbs, and its task of the hub.

    Args:
        relevance: of a pair of texts by what `classify` says of it; None where it does not say.
    """
    makers = {**_MAKERS, "fill": lambda verb: _fill_mask(verb, tokenizer)}
    hub = {name: makers[verb](verbs[verb]) for verb, name in HUB.items() if verb in verbs}
    main = next(iter(hub))
    found = {f"huggingface/{name}": verb for name, verb in hub.items()}
    found["huggingface/"] = chosen_by_shape(
        hub,
        main,
        about=f"What `InferenceClient(model=address)` sends: {main}, and what can be nothing else.",
    )
    if "embed" in verbs:
        found["openai/embeddings"] = _openai(verbs["embed"])
        found["tei/embed"] = _vectors(
            verbs["embed"], "Embeddings as text-embeddings-inference gives them.", True, False
        )
    if "classify" in verbs:
        found["tei/predict"] = _tei_predict(verbs["classify"])
    if relevance is not None:
        found |= _rerankers(
            verbs["classify"],
            lambda query, texts: {"texts": [[query, text] for text in texts]},
            lambda answer: [relevance(row) for row in answer["results"]],
        )
    elif main == HUB["embed"]:
        found |= _rerankers(
            verbs["similarity"],
            lambda query, texts: {"text": query, "others": texts},
            lambda answer: answer["similarities"],
        )
    return found, main


def _hub(
    verb: Verb,
    about: str,
    inputs: Shape,
    parameters: Shape,
    ask: Callable[[Any, Any], Any],
    answer: Callable[[Any, Any, Any], Any],
    **more: Any,
) -> Verb:
    """A task of the hub: {"inputs": ..., "parameters": {...}}."""
    own = parameters["properties"]
    left_out = REQUIRED if "required" in parameters else {name: field.get("default") for name, field in own.items()}
    return adapted(
        verb,
        about=about,
        request=Record(
            inputs=Field(inputs, "What the task is asked about."),
            parameters=Field(parameters, "Of the task.", left_out),
        ),
        ask=lambda body: ask(body["inputs"], body["parameters"]),
        answer=lambda found, body: answer(found, body["inputs"], body["parameters"]),
        **more,
    )


def _per_text(answer: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """The answer to each text; to a text that is in no list its own.

    Args:
        answer: (what a verb says of a text, the parameters) -> the answer.
    """

    def answers(found: Any, inputs: Any, parameters: Any) -> Any:
        rows = [answer(row, parameters) for row in found["results"]]
        return rows[0] if isinstance(inputs, str) else rows

    return answers


def _fill_mask(verb: Verb, tokenizer: Tokenizer) -> Verb:
    return _hub(
        verb,
        "Fill the blank of a text; of several blanks a list for each.",
        TEXTS,
        Record(
            top_k=Field(Number(1, 1000, whole=True), "Candidates per blank; default 5.", None),
            targets=Field(ListOf(Text(), least=1), "Compare these answers alone.", None),
        ),
        lambda inputs, given: _given(texts=inputs, top=given["top_k"], candidates=given["targets"]),
        _per_text(lambda row, given: blanks(row, tokenizer, given["top_k"] or 5)),
        example={"inputs": f"Water {tokenizer.mask_token} at 100 degrees."},
    )


def _vectors(verb: Verb, about: str, normalize: bool | None, truncate: bool | None, **more: Field) -> Verb:
    """A vector per text.

    Args:
        normalize, truncate: their defaults.
        more: fields of the request, which are not read.
    """
    return adapted(
        verb,
        about=about,
        request=Record(
            inputs=Field(TEXTS, "A text, or a list of them."),
            normalize=Field(Flag(), "To length 1.", normalize),
            truncate=Field(Flag(), "Cut texts that are too long.", truncate),
            truncation_direction=RIGHT,
            prompt_name=Field(Text(), "The folder's name of a prompt.", None),
            dimensions=Field(Number(1, whole=True), "Keep so many numbers of each vector.", None),
            **more,
        ),
        ask=lambda body: _given(
            texts=body["inputs"],
            normalise=body["normalize"],
            truncate=body["truncate"],
            dimensions=body["dimensions"],
            prompt_name=body["prompt_name"],
        ),
        answer=lambda found, _: found["embeddings"],
        example={"inputs": ["Water boils."]},
    )


def _feature_extraction(verb: Verb) -> Verb:
    numbers = Field(Text(known=("float",)), "Numbers as numbers.", None)
    return _vectors(verb, "One vector per text, pooled as the model says.", None, None, encoding_format=numbers)


def _sentence_similarity(verb: Verb) -> Verb:
    inputs = Record(source_sentence=Field(Text()), sentences=Field(ListOf(Text())))
    return _hub(
        verb,
        "The cosine of a sentence's embedding with those of others.",
        inputs,
        Record(),
        lambda inputs, _: {"text": inputs["source_sentence"], "others": inputs["sentences"]},
        lambda found, *_: found["similarities"],
        telling=lambda body: _has(body, "source_sentence"),
        example={"inputs": {"source_sentence": "Water boils.", "sentences": ["Steam rises."]}},
    )


def _text_classification(verb: Verb) -> Verb:
    def ask(inputs: Any, _: Any) -> Any:
        one = [inputs["text"], inputs["text_pair"]] if isinstance(inputs, dict) else inputs
        return {"texts": inputs if isinstance(inputs, list) else [one]}

    (text,) = verb.example["texts"]
    return _hub(
        verb,
        "Labels of a text, or of a pair of texts, the likeliest first.",
        Either((Text(), ListOf(Text()), PAIR), "a text, a list of texts, or a text and its text_pair"),
        Record(
            top_k=Field(Number(1, whole=True), "Labels to give; default all.", None),
        ),
        ask,
        # Of one text too: the client takes the first of a list of lists.
        lambda found, _, parameters: [ranked(row, parameters["top_k"]) for row in found["results"]],
        shape=ListOf(LABELLED),
        example={"inputs": text if isinstance(text, str) else dict(zip(PAIR["properties"], text, strict=True))},
    )


def _token_classification(verb: Verb) -> Verb:
    return _hub(
        verb,
        "The entities of a text, whole words.",
        TEXTS,
        Record(
            aggregation_strategy=Field(
                Text(known=("simple", "first")), "Entities are whole words by their first.", None
            ),
            ignore_labels=Field(ListOf(Text()), "Leave these out.", None),
        ),
        lambda inputs, _: {"texts": [inputs] if isinstance(inputs, str) else inputs},
        _per_text(lambda row, parameters: entities(row, parameters["ignore_labels"])),
        example={"inputs": "Ada Lovelace lived in London."},
    )


def _question_answering(verb: Verb) -> Verb:
    return _hub(
        verb,
        "The answer to a question, a part of its context.",
        Record(question=Field(Text()), context=Field(Text())),
        Record(
            top_k=Field(Number(1, 20, whole=True), "Answers to give; default 1.", None),
            handle_impossible_answer=Field(Flag(), "Take 'no answer' for an answer.", None),
        ),
        lambda inputs, _: {"questions": [inputs]},
        lambda found, _, given: best_answers(
            found["results"][0], given["top_k"], impossible=given["handle_impossible_answer"]
        ),
        telling=lambda body: _has(body, "question"),
        example={"inputs": {"question": "Who lived in London?", "context": "Ada Lovelace lived in London."}},
    )


def _zero_shot(verb: Verb) -> Verb:
    def ask(inputs: Any, parameters: Any) -> Any:
        if parameters["multi_label"]:
            raise UserError("multi_label", hint="Labels exclude each other here: ask about one and its contrary.")
        template = template_of(parameters["hypothesis_template"])
        return _given(texts=inputs, labels=parameters["candidate_labels"], template=template)

    return _hub(
        verb,
        "Labels of a text without training, the likeliest first.",
        TEXTS,
        Record(
            candidate_labels=Field(ListOf(Text(), least=2), "Two or more."),
            multi_label=Field(Flag(), "Not done: labels exclude each other.", None),
            hypothesis_template=Field(Text(), "With {} for the label; for a masked model with {} and [MASK].", None),
        ),
        ask,
        _per_text(lambda row, _: ranked(row)),
        shape=Either((LABELLED, ListOf(LABELLED)), "the labels of a text, or of each of a list"),
        telling=lambda body: _has(body, "candidate_labels", "parameters"),
        example={"inputs": "What a fine day.", "parameters": {"candidate_labels": ["good", "bad"]}},
    )


_MAKERS: dict[str, Callable[[Verb], Verb]] = {
    "classify": _text_classification,
    "tag": _token_classification,
    "answer": _question_answering,
    "zeroshot": _zero_shot,
    "embed": _feature_extraction,
    "similarity": _sentence_similarity,
}


def _has(body: Any, key: str, below: str = "inputs") -> bool:
    inside = body.get(below) if isinstance(body, dict) else None
    return isinstance(inside, dict) and key in inside


def _given(**values: Any) -> dict[str, Any]:
    """A body of a verb: what is given; the rest is left to its defaults."""
    return {name: value for name, value in values.items() if value is not None}


def _openai(verb: Verb) -> Verb:
    def answer(found: Any, body: Any) -> Any:
        vectors = np.asarray(found["embeddings"], "<f4")
        rows: Any = list(vectors)
        if body["encoding_format"] == "base64":
            rows = [base64.b64encode(vector.tobytes()).decode() for vector in vectors]
        return {
            "object": "list",
            "data": [{"object": "embedding", "index": n, "embedding": row} for n, row in enumerate(rows)],
            "model": body["model"],
            "usage": {"prompt_tokens": found["tokens"], "total_tokens": found["tokens"]},
        }

    return adapted(
        verb,
        about="Embeddings as OpenAI's API gives them.",
        request=Record(
            model=Field(Text(), "The name of the model here."),
            input=Field(TEXTS, "A text, or a list of them."),
            encoding_format=Field(Text(known=("float", "base64")), "base64: of little-endian 32-bit floats.", None),
            dimensions=Field(Number(1, whole=True), "Keep so many numbers of each vector.", None),
            user=Field(Text(), "Not read.", None),
        ),
        ask=lambda body: _given(texts=body["input"], dimensions=body["dimensions"]),
        answer=answer,
        example={"model": "MODEL", "input": ["Water boils."]},
    )


def _tei_predict(verb: Verb) -> Verb:
    each = Either((Text(), ListOf(Text())), "a text, or a list")
    return adapted(
        verb,
        about="Labels as text-embeddings-inference gives them.",
        request=Record(
            inputs=Field(Either((Text(), ListOf(each)), "a text or a list of them"), "A text, or a list of [text]."),
            raw_scores=RAW_SCORES,
            truncate=Field(Flag(), "Cut texts that are too long.", False),
        ),
        ask=_predicted,
        answer=lambda found, body: _per_text(lambda row, _: ranked(row))(found, body["inputs"], None),
        example={"inputs": verb.example["texts"]},
    )


def _no_raw_scores(body: Any) -> None:
    if body["raw_scores"]:
        raise UserError("raw_scores", hint="Scores are given as the model means them: leave it out.")


def _predicted(body: Any) -> Any:
    _no_raw_scores(body)
    inputs = [body["inputs"]] if isinstance(body["inputs"], str) else body["inputs"]
    texts = [one[0] if isinstance(one, list) and len(one) == 1 else one for one in inputs]
    return {"texts": texts, "truncate": body["truncate"]}


def _rerankers(
    verb: Verb, ask: Callable[[str, list[str]], dict[str, Any]], scores: Callable[[Any], Sequence[float]]
) -> dict[str, Verb]:
    """Texts ordered by their relevance to a query, in the words of text-embeddings-inference, and of Cohere and Jina.

    Args:
        ask: (query, texts) -> the body of `verb`.
        scores: its answer -> one number per text, the more relevant the higher.
    """

    def ordered(found: Any) -> list[tuple[int, float]]:
        return sorted(enumerate(scores(found)), key=lambda pair: -pair[1])

    def tei_body(body: Any) -> dict[str, Any]:
        _no_raw_scores(body)
        return ask(body["query"], body["texts"]) | {"truncate": body["truncate"]}

    def texts_of(body: Any) -> list[str]:
        return [one if isinstance(one, str) else one["text"] for one in body["documents"]]

    def tei_answer(found: Any, body: Any) -> Any:
        more = [{"text": text} if body["return_text"] else {} for text in body["texts"]]
        return [{"index": n, "score": score, **more[n]} for n, score in ordered(found)]

    def cohere_answer(found: Any, body: Any) -> Any:
        more = [{"document": {"text": text}} if body["return_documents"] else {} for text in texts_of(body)]
        rows = [{"index": n, "relevance_score": score, **more[n]} for n, score in ordered(found)[: body["top_n"]]]
        return {"model": body["model"], "results": rows}

    query = Field(Text(), "What is looked for.")
    document = Either((Text(), Record(text=Field(Text()))), "a text, or an object with its text")
    tei = adapted(
        verb,
        about="Texts by their relevance to a query, as text-embeddings-inference orders them.",
        request=Record(
            query=query,
            texts=Field(ListOf(Text(), least=1), "What is ordered."),
            raw_scores=RAW_SCORES,
            return_text=Field(Flag(), "Give the texts too.", False),
            truncate=Field(Flag(), "Cut texts that are too long.", False),
            truncation_direction=RIGHT,
        ),
        ask=tei_body,
        answer=tei_answer,
        shape=ListOf(Open(index=Field(Number(whole=True), "Its place."), score=Field(Number()))),
        example={"query": "Where is steam?", "texts": ["The cat sat down.", "Steam rises."]},
    )
    cohere = adapted(
        verb,
        about="Documents by their relevance to a query, as Cohere's and Jina's APIs order them.",
        request=Record(
            model=Field(Text(), "The name of the model here."),
            query=query,
            documents=Field(ListOf(document, least=1), "What is ordered."),
            top_n=Field(Number(1, whole=True), "Give so many, the most relevant; default all.", None),
            return_documents=Field(Flag(), "Give the documents too.", True),
            truncation=Field(Flag(), "Cut documents that are too long.", False),
        ),
        ask=lambda body: ask(body["query"], texts_of(body)) | {"truncate": body["truncation"]},
        answer=cohere_answer,
        shape=Open(results=records(index=Field(Number(whole=True), "Its place."), relevance_score=Field(Number()))),
        example={"model": "MODEL", "query": "Where is steam?", "documents": ["The cat sat down.", "Steam rises."]},
    )
    return {"tei/rerank": tei, "cohere/rerank": cohere}
