"""What is measured, on data that everybody has: bundled with a package, simulated, or of installed packages.

Each function measures once, with one seed that draws the split, the holes and the training, and gives model or rule ->
figure -> value, ours first.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unmask.writing import temporary_folder

Found = dict[str, dict[str, float]]


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is gone afterwards, without a warning of what is well known of small runs."""
    with temporary_folder() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield Path(place)


def imputation(*, seed: int) -> Found:
    """A fifth of the covariates' cells of the German breast cancer study, hidden at random and imputed.

    nrmse: root mean squared error over the column's deviation, mean over quantities; wrong: share of categories wrong,
    mean over categories; coverage: share of the true numbers in their 90 % intervals.
    """
    from unmask.modalities.table.demo import judged, load_study, punch
    from unmask.modalities.table.model import TableModel

    study = load_study()
    holed, gone = punch(study, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = TableModel.fit(holed, duration="time", event="cens", seed=seed)
        filled, records = model.impute(holed), model.intervals(holed, coverage=0.9).to_dicts()
        trees = chained_trees(holed, seed)
    (ours, inside), (theirs, _) = (judged(study, holed, x, records, gone) for x in (filled, trees))
    deviation = {name: float(study[name].std()) for name in gone if study[name].dtype.is_numeric()}

    def figures(rows: Sequence[dict[str, Any]], key: str) -> dict[str, float]:
        quantities = [r[key] / deviation[r["column"]] for r in rows if r["column"] in deviation]
        return {
            "nrmse": float(np.mean(quantities)),
            "wrong": float(np.mean([r[key] for r in rows if r["column"] not in deviation])),
        }

    return {
        "unmask": figures(ours, "ours") | {"coverage": inside},
        "chained trees (scikit-learn)": figures(theirs, "ours"),
        "mean or mode": figures(ours, "plain"),
    }


def chained_trees(table: Any, seed: int) -> Any:
    """A polars table with holes filled by scikit-learn's IterativeImputer with 50 extra trees, five rounds; categories
    as one column per level, of which the largest wins."""
    import polars as pl
    from sklearn.ensemble import ExtraTreesRegressor
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    columns: list[np.ndarray] = []
    places: dict[str, tuple[int, list[Any]]] = {}
    for name in table.columns:
        x = table[name]
        if x.dtype.is_numeric():
            places[name] = (len(columns), [])
            columns.append(x.cast(pl.Float64).fill_null(float("nan")).to_numpy())
            continue
        levels = sorted(x.drop_nulls().unique().to_list())
        places[name] = (len(columns), levels)
        missing = x.is_null().to_numpy()
        for level in levels:
            columns.append(np.where(missing, np.nan, (x == level).fill_null(False).to_numpy().astype(float)))
    trees = ExtraTreesRegressor(50, random_state=seed, n_jobs=1)
    done = IterativeImputer(trees, max_iter=5, random_state=seed).fit_transform(np.column_stack(columns))
    out = {}
    for name, (at, levels) in places.items():
        best = done[:, at : at + len(levels)].argmax(1) if levels else None
        out[name] = done[:, at].tolist() if best is None else [levels[i] for i in best]
    return pl.DataFrame(out)


def digits(*, seed: int, steps: int) -> Found:
    """scikit-learn's digits: a masked autoencoder learns from two thirds without labels; a linear probe and the 20
    nearest neighbours on its features of the other third, beside raw pixels and the same network untrained."""
    from sklearn.datasets import load_digits

    from unmask.modalities.images.network.build import untrained
    from unmask.modalities.images.network.folder import ImageFolder
    from unmask.modalities.images.reading.arrays import ImageSet
    from unmask.modalities.images.recipes import ImageSettings, with_overrides
    from unmask.modalities.images.uses.demo import SETTINGS
    from unmask.modalities.images.uses.model import ImageModel, load
    from unmask.modalities.images.uses.pretrain import pretrain

    found = load_digits()
    test = np.random.default_rng(seed).permutation(len(found.target)) < len(found.target) // 3
    pixels = (found.images * 255 / 16).astype(np.uint8)[..., None]
    labels = found.target.astype(np.int64)
    images = ImageSet(
        pixels=pixels, labels=labels, classes=[str(i) for i in range(10)], split=np.where(test, "test", "train")
    )
    settings = with_overrides(ImageSettings(), SETTINGS | {"steps": steps, "seed": seed, "precision": "fp32"})
    with scratch() as place:
        run = pretrain(images, place / "model", settings=settings, console=False)
        model = load(place / "model", device="cpu", precision="fp32")
        judged = model.evaluate(images)
        fresh = ImageFolder(model=untrained(model.model, run.settings.train.seed).eval())
        before = ImageModel(fresh, model.device, model.precision).evaluate(images, baselines=False)
    often = np.bincount(labels[~test]).argmax()
    common = float((labels[test] == often).mean())
    return {
        "unmask, trained without labels": {k: judged[k] for k in ("probe_accuracy", "knn_accuracy")},
        "raw pixels": {k: judged[f"raw_{k}"] for k in ("probe_accuracy", "knn_accuracy")},
        "the same network, untrained": {k: before[k] for k in ("probe_accuracy", "knn_accuracy")},
        "most frequent digit": {"probe_accuracy": common, "knn_accuracy": common},
    }


def outcome(*, seed: int, patients: int, steps: int) -> Found:
    """Simulated patients with planted rules: a masked model of their events is pretrained and fine-tuned for the
    outcome, and judged on held-out patients beside all that is fitted with it."""
    from unmask.modalities.events.recipes import EventSettings, OutcomeSettings, with_overrides
    from unmask.modalities.events.uses.demo import simulate
    from unmask.modalities.events.uses.finetune import finetune_outcome
    from unmask.modalities.events.uses.pretrain import pretrain

    given = {"steps": steps, "seed": seed, "slots": 64, "batch_slots": 4096, "ratio": 0.4, "hide": "event"}
    settings = with_overrides(EventSettings(), given | {"learning_rate": 4e-3, "precision": "fp32"})
    with scratch() as place:
        meds = simulate(place, patients, seed)
        pretrain(meds, place / "model", settings=settings, console=False)
        chosen = OutcomeSettings(seed=seed, precision="fp32", curve=False)
        done = finetune_outcome(place / "model", meds, place / "task", place / "outcome", settings=chosen).figures
    names = {"ours": "unmask"}
    return {names.get(n, n): {k: float(r[k]) for k in ("auroc", "auprc", "brier")} for n, r in done["results"].items()}


def hidden_tokens(*, seed: int, steps: int, characters: int, shape: dict[str, Any]) -> Found:
    """Docstrings of NumPy, SciPy and scikit-learn: accuracy on hidden tokens of held-out docstrings after so many
    steps, beside the most frequent token, and the one most frequent after the token before (taken as seen)."""
    import json

    from unmask.modalities.text.network.card import most_frequent_share
    from unmask.modalities.text.network.pretrain import pretrain
    from unmask.modalities.text.reading.documents import docstrings
    from unmask.modalities.text.recipes import TextSettings, with_overrides
    from unmask.modalities.text.tokens.cache import TokenCache
    from unmask.modalities.text.tokens.tokenizer import Tokenizer
    from unmask.modalities.text.uses.demo import SETTINGS

    given = SETTINGS | {"steps": steps, "seed": seed, "precision": "fp32", "holdout": 0.05} | shape
    settings = with_overrides(TextSettings(), given)
    with scratch() as place:
        with (place / "docstrings.jsonl").open("w", encoding="utf-8") as file:
            for _, text in docstrings(characters, packages=("numpy", "scipy", "sklearn")):
                file.write(json.dumps({"text": text.encode("utf-8", "replace").decode("utf-8")}) + "\n")
        run = pretrain(str(place / "docstrings.jsonl"), place / "model", settings=settings, console=False)
        cache, special = TokenCache.open(place / "model" / "cache"), Tokenizer.load(place / "model").special_ids
        return {
            "unmask": {"accuracy": float(run.result.validation["validation_accuracy"])},
            "most frequent after the token before": {"accuracy": most_likely_after(cache, special)},
            "most frequent token": {"accuracy": most_frequent_share(cache, special)},
        }


def most_likely_after(cache: Any, special_ids: np.ndarray) -> float:
    """Accuracy on the held-out tokens of guessing, for each, what followed the token before it most often in training,
    and the most frequent token where nothing did; NaN without any.
    """
    from unmask.modalities.text.network.card import MOST_TOKENS, first_tokens, most_frequent_token

    special = np.asarray(special_ids, np.int64)
    size = int(cache.meta["vocabulary"])
    pairs = list(first_tokens(cache, np.asarray(cache.train), MOST_TOKENS))
    before, after = (np.concatenate([ids[part] for ids in pairs]) for part in (slice(None, -1), slice(1, None)))
    known = ~np.isin(after, special)
    key, count = np.unique(before[known].astype(np.int64) * size + after[known], return_counts=True)
    order = np.argsort(count, kind="stable")  # of each first token the most frequent second one is written last
    best = np.full(size, most_frequent_token(cache.frequencies(), special))
    best[key[order] // size] = key[order] % size
    right = total = 0
    for ids in first_tokens(cache, np.asarray(cache.validation), MOST_TOKENS):
        judged = ~np.isin(ids[1:], special)
        right, total = right + int((best[ids[:-1]] == ids[1:])[judged].sum()), total + int(judged.sum())
    return right / total if total else float("nan")


__all__ = ["chained_trees", "digits", "hidden_tokens", "imputation", "outcome"]
