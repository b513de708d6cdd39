"""Answers of all GET routes for the stored runs are those of the golden files, and are as openapi.json describes them."""

from __future__ import annotations

import pytest
from area_api import Answers, compute
from files import assert_same
from schema_check import differences

from vramscope_server.app import create_app
from vramscope_server.settings import Settings


@pytest.mark.timeout(600)
def test_every_get_route_answers_as_the_golden_files_say(tmp_path) -> None:
    seen: Answers = []
    for area, result in compute(seen).items():
        assert_same(area, result)
    app = create_app(Settings(data_dir=tmp_path))
    described = app.openapi()
    app.state.services.close()
    wrong: set[str] = set()
    for route, method, answer in seen:
        kind = answer.headers.get("content-type", "")
        if kind.endswith("json") and not route.endswith("/export"):
            responses = described["paths"][f"/api/v1{route}"][method]["responses"]
            values = responses.get(str(answer.status_code), responses["default"])
            wrong |= set(differences(answer.json(), values["content"][kind]["schema"], described, f"{method} {route}"))
    assert not wrong, "\n".join(sorted(wrong))
