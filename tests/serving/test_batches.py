"""Requests about tables, pictures and patients share batches too, and each answer is the one it would be alone."""

from __future__ import annotations

import base64
import io
from datetime import datetime, timedelta

import numpy as np
import orjson
import polars as pl
import pytest
from PIL import Image
from tables import patients as table_rows

from tiny_images import bars
from unmask.serving.shapes import checked


def alike(one, other, at=""):
    """Equal, numbers to single precision."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), at
        for key in one:
            alike(one[key], other[key], f"{at}.{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), at
        for place, pair in enumerate(zip(one, other, strict=True)):
            alike(*pair, f"{at}[{place}]")
    elif isinstance(one, float) and isinstance(other, float):
        assert other == pytest.approx(one, rel=1e-4, abs=1e-5), at
    elif at.endswith(".time") and one != other:  # a prediction too, to the microsecond
        assert abs(datetime.fromisoformat(one) - datetime.fromisoformat(other)) < timedelta(minutes=1), at
    else:
        assert one == other, at


def compared(verb, bodies):
    """Answers to requests worked on together, which are those that they have alone."""
    works = [verb.prepare(checked(verb.request, body)) for body in bodies]
    assert works[0].together is not None
    assert len({work.together for work in works}) == 1
    found = list(works[0].run([item for work in works for item in work.items]))
    assert len(found) == sum(len(work.items) for work in works)
    shared = []
    for work in works:
        shared.append(plain(work.finish(found[: len(work.items)])))
        found = found[len(work.items) :]
    for answer, body in zip(shared, bodies, strict=True):
        work = verb.prepare(checked(verb.request, body))
        alike(plain(work.finish(work.run(work.items))), answer)
    return shared


def plain(answer):
    return orjson.loads(orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY, default=lambda v: v.isoformat()))


def kinds_of(verb, *bodies):
    return {verb.prepare(checked(verb.request, body)).together for body in bodies}


def rows(count, seed, **changed):
    found = table_rows(count, seed=seed, missing=0.3).replace({np.nan: None}).to_dict("records")
    return [{**row, **changed} for row in found]


def test_rows_of_tables(table_served):
    bodies = [{"rows": rows(n, seed=n)} for n in (1, 4, 40)]
    lacking = [{k: v for k, v in row.items() if k != "stage"} for row in rows(3, seed=9, age=200)]
    bodies.append({"rows": lacking, "absent": ["stage"]})
    for verb in ("score", "embed", "impute"):
        found = compared(table_served.verbs[verb], bodies)
        assert "'age'" in str(found[-1]["warnings"])  # what is said of one request is not said of another
        assert "'age'" not in str(found[0]["warnings"])
    impute = table_served.verbs["impute"]
    assert len(kinds_of(impute, bodies[0], {**bodies[0], "coverage": 0.5})) == 2
    assert kinds_of(impute, {**bodies[0], "draws": 2}) == {None}
    compared(impute, [{**body, "constraints": ["dbp < sbp"]} for body in bodies[:3]])


def png(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def test_pictures(images_served, image_folders):
    from unmask.serving.limits import Limits
    from unmask.serving.models import serve

    pictures = [png(p) for p in bars(7)[0]]
    bodies = [{"images": pictures[:1]}, {"images": pictures[1:4]}, {"images": pictures[4:]}]
    compared(images_served.verbs["embed"], bodies)
    compared(serve(str(image_folders["tuned"]), Limits()).verbs["classify"], bodies)
    reconstruct = images_served.verbs["reconstruct"]
    mask = np.eye(4, dtype=int).tolist()
    masked = [{**bodies[0], "mask": mask}, {**bodies[1], "ratio": 0.3, "seed": 5}, {**bodies[2], "box": [0, 0, 5, 5]}]
    compared(reconstruct, [{**body, "pixels": True} for body in masked])
    assert kinds_of(reconstruct, {**bodies[0], "temperature": 1.0}, {**bodies[0], "steps": 3}) == {None}


def test_patients(events_served, event_home):
    frame = pl.read_parquet(event_home / "meds" / "data" / "**" / "*.parquet").sort("subject_id", maintain_order=True)
    everyone = []
    for (subject,), events in frame.group_by("subject_id", maintain_order=True):
        told = [{**row, "time": row["time"] and row["time"].isoformat()} for row in events.to_dicts()]
        kept = [{name: row[name] for name in ("time", "code", "numeric_value")} for row in told]
        everyone.append({"subject_id": subject, "events": kept})
    stranger = {"subject_id": everyone[0]["subject_id"], "events": [*everyone[5]["events"], {"code": "NEVER//SEEN"}]}
    someone = {"events": [event | {"numeric_value": None} for event in everyone[6]["events"]]}
    bodies = [{"patients": everyone[:1]}, {"patients": everyone[1:4]}, {"patients": [stranger, someone]}]
    for verb, options in (("embed", {}), ("fill", {"top": 3}), ("score", {"by": "event"}), ("score", {})):
        found = compared(events_served.verbs[verb], [{**body, **options} for body in bodies])
        assert [one["unknown"]["unknown_events"] for one in found] == [0, 0, 1]
    late = [{"patients": [{**p, "prediction_time": None} for p in body["patients"]]} for body in bodies]
    compared(events_served.verbs["outcome"], late)
