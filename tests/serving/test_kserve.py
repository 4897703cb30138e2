"""KServe's V2: tensors in and out of the verbs of every kind; what is wrong is said in its words."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

import unmask
from running_server import running
from storm import from_schema, of_one_form
from text_corpus import SENTENCES
from unmask.serving.limits import Limits
from unmask.serving.models import load_served

TEXTS = [text for text in SENTENCES if len(text) < 70][:3]


def texts(*data, shape=None, name="texts", datatype="BYTES"):
    return {"name": name, "shape": shape or [len(data)], "datatype": datatype, "data": list(data)}


def outputs(found):
    """Name -> array of an answer."""
    return {
        one["name"]: np.array(one["data"], object if one["datatype"] == "BYTES" else np.float64).reshape(one["shape"])
        for one in found["outputs"]
    }


@pytest.fixture(scope="module")
def server(text_folders, table_folder, event_home):
    named = {name: str(text_folders[name]) for name in ("masked", "classify", "answer")}
    named |= {"table": str(table_folder), "outcome": str(event_home / "outcome")}
    with running(load_served(named, Limits(), device="auto", precision="auto")) as asked:
        yield asked


def test_server_and_models_say_what_they_are(server):
    assert server.get("/v2") == (200, {"name": "unmask", "version": unmask.__version__, "extensions": []})
    assert server.get("/v2/health/live")[1]["live"] is True
    assert server.get("/v2/health/ready")[0] == 200
    assert server.get("/v2/models/masked/ready") == (200, {"name": "masked", "ready": True})
    for name in ("masked", "classify", "table"):
        found = server.get(f"/v2/models/{name}")[1]
        assert (found["name"], found["platform"]) == (name, "unmask")
        assert all(one.keys() == {"name", "datatype", "shape"} for one in found["inputs"] + found["outputs"])
    assert found["inputs"][0] == {"name": "age", "datatype": "FP64", "shape": [-1]}
    assert server.get("/v2/models/classify")[1]["inputs"] == [{"name": "texts", "datatype": "BYTES", "shape": [-1]}]


def test_metadata_names_the_outputs_that_come(server, table_folder):
    columns = server.get("/models/table")[1]["about"]["columns"]
    row = {c["name"]: (c["categories"] or [c["low"]])[0] for c in columns[1:]}
    bodies = {
        "masked": [texts("The [MASK] fox.")],
        "classify": [texts(*TEXTS)],
        "table": [
            texts(value, name=name, datatype="BYTES" if isinstance(value, str) else "FP64")
            for name, value in row.items()
        ],
    }
    for name, inputs in bodies.items():
        status, found = server.post(
            f"/v2/models/{name}/infer",
            {"inputs": inputs, "parameters": {"absent": [columns[0]["name"]]} if name == "table" else None},
        )
        assert status == 200, found
        said = {one["name"]: one for one in server.get(f"/v2/models/{name}")[1]["outputs"]}
        for one in found["outputs"]:
            if "." not in one["name"]:
                assert one["datatype"] == said[one["name"]]["datatype"], one["name"]
                assert len(one["shape"]) == len(said[one["name"]]["shape"]), one["name"]


def test_a_classifier_gives_labels_and_a_matrix_of_probabilities(server, text_folders):
    body = {"id": "42", "inputs": [texts(*TEXTS)], "outputs": [{"name": "probabilities"}, {"name": "label"}]}
    status, found = server.post("/v2/models/classify/infer", body)
    assert (status, found["id"], found["model_name"]) == (200, "42", "classify")
    assert [one["name"] for one in found["outputs"]] == ["probabilities", "label"]
    own = unmask.predict(text_folders["classify"], TEXTS)
    assert outputs(found)["label"].tolist() == [row["label"] for row in own]
    names = json.loads(found["outputs"][0]["parameters"]["names"])
    expected = [[row["probabilities"][name] for name in names] for row in own]
    np.testing.assert_allclose(outputs(found)["probabilities"], expected, atol=1e-4)


@pytest.mark.parametrize("shape", [[3], [3, 1]])
def test_parameters_name_another_verb_and_its_keys(server, text_folders, shape):
    body = {
        "inputs": [texts(*TEXTS, shape=shape)],
        "parameters": {"verb": "embed", "normalise": True, "binary_data_output": True},
    }
    status, found = server.post("/v2/models/masked/infer", body)
    assert status == 200, found
    assert found["outputs"][0]["datatype"] == "FP32"
    assert found["parameters"]["tokens"] > 3
    own = unmask.load(text_folders["masked"]).embed(TEXTS, normalise=True)
    np.testing.assert_allclose(outputs(found)["embeddings"], own, atol=1e-2)


def test_columns_of_a_table_are_tensors(server):
    rows = [{"age": 60.0, "sex": "F"}, {"age": None, "sex": "M"}]
    names = [one["name"] for one in server.get("/v2/models/table")[1]["inputs"]]
    given = [name for name in rows[0] if name in names]
    inputs = [
        texts(*(row[name] for row in rows), name=name, datatype="FP64" if name == "age" else "BYTES") for name in given
    ]
    parameters = {"absent": [name for name in names if name not in given]}
    status, found = server.post("/v2/models/table/infer", {"inputs": inputs, "parameters": parameters})
    assert status == 200, found
    own = server.post("/models/table/impute", {"rows": [{n: row[n] for n in given} for row in rows], **parameters})[1]
    assert outputs(found)["age"].tolist() == [row["age"] for row in own["rows"]]
    scored = {"inputs": inputs, "parameters": {"verb": "embed", **parameters}}
    assert len(outputs(server.post("/v2/models/table/infer", scored)[1])["embeddings"]) == 2


def test_objects_are_sent_as_their_json(server):
    code = server.get("/models/outcome")[1]["about"]["known_codes"][0]
    patient = {"events": [{"time": "2020-01-01", "code": code}]}
    status, found = server.post(
        "/v2/models/outcome/infer", {"inputs": [texts(json.dumps(patient), json.dumps(patient), name="patients")]}
    )
    assert status == 200, found
    assert any(one["shape"] == [2] and one["datatype"] == "FP64" for one in found["outputs"])


@pytest.mark.parametrize(
    ("model", "body", "status", "said"),
    [
        ("masked", {"inputs": []}, 400, "inputs: 0 values"),
        ("masked", {"inputs": [texts("a [MASK]", name="text")]}, 400, "inputs[0].name: 'text' is no input"),
        ("masked", {"inputs": [texts("a [MASK]", shape=[2])]}, 400, "inputs[0]: 1 values, and a shape of [2]"),
        ("masked", {"inputs": [texts([["a"]])]}, 400, "inputs[0].data[0]: a list, expected a text"),
        ("masked", {"inputs": [texts(3)]}, 400, "inputs[0].data[0]: a number, expected a text"),
        ("masked", {"inputs": [texts(0.5, datatype="INT64")]}, 400, "expected a whole number"),
        ("masked", {"inputs": [texts("a", datatype="TEXT")]}, 400, "inputs[0].datatype: 'TEXT'"),
        ("masked", {"inputs": [texts("a"), texts("b")]}, 400, "inputs[1].name: 'texts' is there twice"),
        ("masked", {"inputs": [texts("a [MASK]")], "parameters": {"verb": "file"}}, 400, "parameters.verb: 'file'"),
        ("masked", {"inputs": [texts("a [MASK]")], "parameters": {"topp": 3}}, 400, "topp: no such key"),
        ("masked", {"inputs": [texts("a [MASK]")], "outputs": [{"name": "x"}]}, 400, "outputs: 'x' is none"),
        ("masked", {"texts": ["a"]}, 400, "texts: no such key"),
        ("table", {"inputs": [texts(1, name="age", datatype="FP64"), texts(name="sex")]}, 400, "of several lengths"),
        ("outcome", {"inputs": [texts("{", name="patients")]}, 400, "inputs[0].data"),
        ("nobody", {"inputs": [texts("a")]}, 404, "no model 'nobody'"),
    ],
)
def test_wrong_input_is_named(server, model, body, status, said):
    got, found = server.post(f"/v2/models/{model}/infer", body)
    assert (got, list(found)) == (status, ["error"])
    assert said in found["error"]


@pytest.mark.parametrize("model", ["masked", "classify", "answer", "table", "outcome"])
def test_no_body_is_answered_with_500(server, model):
    rng = random.Random(7)
    schema = server.get("/openapi.json")[1]["paths"][f"/v2/models/{model}/infer"]["post"]["requestBody"]
    keys = ["texts", "questions", "patients", "age", "rows"]
    for _ in range(80):
        body = from_schema(schema["content"]["application/json"]["schema"], rng)
        for one in body.get("inputs", []):
            one["name"] = rng.choice(keys)
            if rng.random() < 0.8:
                one |= {"data": [rng.choice(["a", 1, 0.5, None, True, "{}", [1]])] * 2, "shape": [2]}
        if rng.random() < 0.7:
            body["parameters"] = {"verb": rng.choice([*server.get(f"/models/{model}")[1]["verbs"], 3, None])}
        if rng.random() < 0.8:
            body.pop("outputs", None)
        status, found = server.post(f"/v2/models/{model}/infer", body)
        assert status in (200, 400), (body, found)
        assert status == 200 or of_one_form(f"/v2/models/{model}/infer", json.dumps(found).encode())


def test_the_binary_extension_is_refused(server):
    headers = {"Inference-Header-Content-Length": "20"}
    status, _, found = server.send("POST", "/v2/models/masked/infer", b"{}xx", headers)
    assert status == 400
    assert "binary" in json.loads(found)["error"]
    assert server.get("/v2/models/nobody")[0] == 404


def test_it_stands_in_the_documentation(server):
    assert "/v2/models/table/infer" in server.get("/openapi.json")[1]["paths"]


def test_tritonclient(server, text_folders):
    client = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")
    asked = client.InferenceServerClient(f"127.0.0.1:{server.port}")
    assert asked.is_server_live()
    assert asked.is_server_ready()
    assert asked.is_model_ready("classify")
    assert asked.get_model_metadata("classify")["inputs"][0]["name"] == "texts"
    given = client.InferInput("texts", [len(TEXTS)], "BYTES")
    given.set_data_from_numpy(np.array(TEXTS, object), binary_data=False)
    own = [row["label"] for row in unmask.predict(text_folders["classify"], TEXTS)]
    for wanted in (None, [client.InferRequestedOutput("label", binary_data=False)]):
        found = asked.infer("classify", [given], outputs=wanted, request_id="7")
        assert found.as_numpy("label").tolist() == own
        assert found.get_response()["id"] == "7"
    given.set_data_from_numpy(np.array(TEXTS, object))
    with pytest.raises(client.InferenceServerException, match="binary"):
        asked.infer("classify", [given])
