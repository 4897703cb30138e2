"""Retrieval in the file layout of BEIR (Thakur et al. 2021): which documents a model's vectors find for a query.

DIR/corpus.jsonl       {"_id": "d1", "title": "", "text": "..."}
    queries.jsonl      {"_id": "q1", "text": "..."}
    qrels/test.tsv     query-id <tab> corpus-id <tab> score, with that header or none; above 0 is relevant. Or TREC's
                       four columns: query, 0, document, relevance
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unmask.core.inference import inference_mode, packed_batches
from unmask.errors import UserError, option
from unmask.evaluation.metrics import bootstrap_mean
from unmask.files import read_text, split_lines
from unmask.modalities.text.tasks import scorers
from unmask.modalities.text.tasks.registry import task_of
from unmask.modalities.text.tasks.row_files import read_rows
from unmask.modalities.text.uses.filling import cut_notes
from unmask.modalities.text.uses.model import TextModel, load
from unmask.writing import written

DEEPEST = 100
"""Documents ranked for each query: recall is published at 100, all else at 10."""


@dataclass(frozen=True, kw_only=True)
class Collection:
    """Documents, and the queries that have some relevant among them: for each query `relevant` has document number ->
    relevance above 0, `itself` the number of the document with the same name, None where there is none."""

    documents: list[str]
    queries: list[str]
    relevant: list[dict[int, float]]
    itself: list[int | None]


def is_collection(data: Any) -> bool:
    """Whether data is a folder with queries."""
    return isinstance(data, str | Path) and (Path(data) / "queries.jsonl").is_file()


def read_collection(folder: str | Path) -> Collection:
    """Read a folder; the judgements are qrels/test.tsv, or the only file there."""
    home = Path(folder)
    documents, queries = _texts(home / "corpus.jsonl"), _texts(home / "queries.jsonl")
    number = {name: i for i, name in enumerate(documents)}
    relevant: dict[str, dict[int, float]] = {}
    judged = sorted((home / "qrels").glob("*.tsv"))
    chosen = [path for path in judged if path.stem == "test"] or judged
    if len(chosen) != 1:
        names = ", ".join(path.name for path in judged)
        raise UserError(f"{home / 'qrels'}: {names or 'no .tsv file'}", hint="Expected test.tsv, or one file.")
    path = chosen[0]
    for where, query, document, grade in _judgements(path):
        for name, known, file in ((query, queries, "queries.jsonl"), (document, documents, "corpus.jsonl")):
            if name not in known:
                raise UserError(
                    f"{where}: {name!r} is not in {file}", hint="Expected columns query-id, corpus-id, score, by tabs."
                )
        try:
            score = float(grade)
        except ValueError:
            raise UserError(f"{where}: score {grade!r}", hint="Expected a number.") from None
        if score > 0:
            relevant.setdefault(query, {})[number[document]] = score
    if not relevant:
        raise UserError(f"{path}: no query has a relevant document", hint="Relevant ones have a score above 0.")
    return Collection(
        documents=list(documents.values()),
        queries=[queries[name] for name in relevant],
        relevant=list(relevant.values()),
        itself=[number.get(name) for name in relevant],
    )


def _judgements(path: Path) -> Iterator[tuple[str, str, str, str]]:
    """(where, query, document, score) of the lines of a file of judgements."""
    lines = split_lines(read_text(path))
    header = [name.strip(' "').lower() for name in lines[0].split("\t")] if lines else []
    named = {"query-id", "corpus-id", "score"} <= set(header)
    for number, line in enumerate(lines[named:], start=1 + named):
        if cells := [cell.strip(' "') for cell in (line.split("\t") if "\t" in line else line.split())]:
            if len(cells) != len(header) if named else len(cells) not in (3, 4):
                raise UserError(
                    f"{path}:{number}: {len(cells)} columns: {line[:60]!r}",
                    hint="Expected columns query-id, corpus-id, score, by tabs; or query, 0, document, relevance.",
                )
            places = [header.index(name) for name in ("query-id", "corpus-id", "score")] if named else (0, -2, -1)
            query, document, score = (cells[place] for place in places)
            yield f"{path}:{number}", query, document, score


def _texts(path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for where, row in read_rows(path):
        name, text = row.get("_id"), row.get("text")
        if name is None or not isinstance(text, str):
            raise UserError(f"{where}: no {'_id' if name is None else 'text'}", hint='Expected "_id" and "text".')
        if str(name) in found:
            raise UserError(f"{where}: _id {name!r} is there twice", hint="Names must differ.")
        found[str(name)] = f"{row.get('title') or ''} {text}".strip()
    return found


def evaluate_retrieval(
    model: str | Path,
    folder: str | Path,
    *,
    seed: int = 0,
    device: str = "auto",
    precision: str = "auto",
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """nDCG, MRR and recall at 10, and recall at 100, means over queries; a 95 % interval of nDCG@10 over queries. All
    documents are ranked by cosine, exactly, with a model fine-tuned for similarity, or any text model whose vectors are
    to be compared. As in the published scores, a document with the name of the query does not count as found. `say` is
    called with how many documents and queries are cut."""
    if (task := task_of(model)) not in (None, "similarity"):
        raise UserError(f"{model}: fine-tuned for {task}", hint="Retrieval needs a model fine-tuned for similarity.")
    data = read_collection(folder)
    loaded = load(model, device=device, precision=precision)
    for what, texts in (("documents", data.documents), ("queries", data.queries)):
        for line in cut_notes(loaded.too_long(texts), len(texts), loaded.embedded_slots, what):
            say(line)
    hits = Index(loaded, data.documents).search(data.queries, top=DEEPEST + 1)
    rows = _scored(data, [[hit["number"] for hit in found] for found in hits])
    parts = (rows, _scored(data, _by_words(data)))
    metrics, words = ({name: float(np.mean([row[name] for row in part])) for name in part[0]} for part in parts)
    main = bootstrap_mean([row["ndcg@10"] for row in rows], groups=np.arange(len(rows)), seed=seed)
    return {
        "task": "retrieval",
        "metric": "ndcg@10",
        "value": main.value,
        "low": main.low if math.isfinite(main.low) else None,
        "high": main.high if math.isfinite(main.high) else None,
        "rows": len(data.queries),
        "queries": len(data.queries),
        "documents": len(data.documents),
        "metrics": metrics,
        **metrics,
        "figures": {"rule": {"name": "shared words (TF-IDF)", **words}},
        "device": str(loaded.device),
        "precision": loaded.precision,
    }


def _scored(data: Collection, hits: Sequence[Sequence[int]]) -> list[dict[str, float]]:
    """Of each query, the scores of its ranked documents, without the one of its own name."""
    rows: list[dict[str, float]] = []
    for found, truth, itself in zip(hits, data.relevant, data.itself, strict=True):
        ranked = [number for number in found if number != itself]
        deep = scorers.retrieval_scores([ranked], [truth], k=DEEPEST)
        rows.append(scorers.retrieval_scores([ranked], [truth]) | {f"recall@{DEEPEST}": deep[f"recall@{DEEPEST}"]})
    return rows


def _by_words(data: Collection) -> list[list[int]]:
    """Of each query the documents by the cosine of their TF-IDF vectors, those without a shared word last."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    made = TfidfVectorizer(token_pattern=r"(?u)\b\w+\b", sublinear_tf=True)
    documents = made.fit_transform([text or "empty" for text in data.documents])
    found = []
    for query in made.transform(data.queries):
        score = (documents @ query.T).toarray().ravel()
        found.append(np.argsort(-score, kind="stable")[: DEEPEST + 1].tolist())
    return found


def token_features(model: TextModel, texts: Sequence[str], *, specials: bool = False) -> list[dict[str, Any]]:
    """For each text its tokens, their character offsets and their (tokens, width) states; special ones with
    `specials`."""
    encoded = model.tokenizer.encode(list(texts), max_slots=model.slots)
    examples = model.examples(texts, max_slots=model.slots)
    out: list[dict[str, Any]] = [{} for _ in texts]
    with inference_mode(model.model), model.context():
        for batch, numbers in packed_batches(examples, model.slots):
            states = model.model.states(batch.to(model.device)).float().cpu().numpy()
            states, index = states.reshape(-1, states.shape[-1]), batch.index.numpy().ravel()
            for i, number in enumerate(numbers.tolist()):
                e = encoded[number]
                keep = ~e.special | specials
                out[number] = {
                    "tokens": [model.tokenizer.token(t) for t in e.ids[keep]],
                    "offsets": e.offsets[keep],
                    "states": states[index == i][keep],
                }
    return out


def write_features(
    model: TextModel, texts: Sequence[str], out: str | Path, *, per_token: bool = False, pooling: str | None = None
) -> Path:
    """Write features: .npy (texts, width), or .parquet with text, and vector or tokens, starts, ends and vectors."""
    if per_token and pooling is not None:
        raise UserError(f"{option('pooling', pooling)} per token: nothing reads this", hint="Leave it out.")
    path = Path(out)
    if path.suffix not in (".npy", ".parquet") or (per_token and path.suffix == ".npy"):
        raise UserError(f"{out}", hint="Per-token features go to .parquet, pooled ones to .npy or .parquet.")
    with written(path) as temporary:
        if path.suffix == ".npy":
            np.save(temporary, model.embed(list(texts), pooling=pooling))
        else:
            import polars

            table: dict[str, Any] = {"text": list(texts)}
            if per_token:
                found = token_features(model, texts)
                table |= {
                    "tokens": [f["tokens"] for f in found],
                    "start": [f["offsets"][:, 0].tolist() for f in found],
                    "end": [f["offsets"][:, 1].tolist() for f in found],
                    "states": [f["states"].tolist() for f in found],
                }
            else:
                table["vector"] = model.embed(list(texts), pooling=pooling).tolist()
            polars.DataFrame(table).write_parquet(temporary)
    return path


class Index:
    """Search among texts that fit into memory: exact, by cosine or as the model's folder compares vectors.

    Args:
        model: a text model; one fine-tuned for similarity gives the better vectors.
        prompt_name: the folder's name of the prompt of these texts ("passage"); default as `TextModel.embed`.
    """

    def __init__(
        self, model: TextModel, texts: Sequence[str], *, pooling: str | None = None, prompt_name: str | None = None
    ) -> None:
        self.model, self.texts, self.pooling = model, list(texts), pooling
        self.vectors = model.embed(self.texts, pooling=pooling, prompt_name=prompt_name)

    def search(
        self, queries: Sequence[str], *, top: int = 10, prompt_name: str | None = None
    ) -> list[list[dict[str, Any]]]:
        """For each query its nearest texts: number, text, score (see `SentenceVectors.similarity`), best first.

        Args:
            prompt_name: the folder's name of the prompt of queries ("query"); default as `TextModel.embed`.
        """
        vectors = self.model.embed(list(queries), pooling=self.pooling, prompt_name=prompt_name)
        found = self.model.folder.sentences.similarity(vectors, self.vectors)
        top = min(top, len(self.texts))
        out = []
        for row in found:
            best = np.argpartition(-row, top - 1)[:top]
            best = best[np.argsort(-row[best], kind="stable")]
            out.append([{"number": int(i), "text": self.texts[i], "score": float(row[i])} for i in best])
        return out
