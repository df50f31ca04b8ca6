"""The console output over the API, and no access to other files."""

from __future__ import annotations

from tachograph.journal import OutputWriter, RunFolder, output_line
from tests.server.conftest import check_error
from tests.store import END, START, write


def test_output_is_paged_searched_and_downloaded(server, client, logs):
    write(logs / "r", [START, END])
    assert client.get("/api/v1/runs/r/output").json()["version"] == ""
    writer = OutputWriter(RunFolder(logs / "r"))
    writer.append(output_line(1_000.5, "stderr", f"line <{number}>") for number in range(100))
    writer.set_partial([output_line(1_001.0, "stdout", "50 %")])
    answer = client.get("/api/v1/runs/r/output?offset=10&limit=2&search=LINE%20%3C9").json()
    assert answer["rows"] == [
        {"number": number, "time": 1_000.5, "stream": "stderr", "text": f"line <{number}>"} for number in (10, 11)
    ]
    assert answer["ranges"] == [{"first": 0, "end": 100}]
    assert (answer["num_matches"], answer["matches"]) == (11, [9, *range(90, 100)])
    assert [row["text"] for row in answer["partial"]] == ["50 %"]
    assert client.get("/api/v1/runs/r/output?limit=1").json()["rows"][0]["number"] == 99
    text = client.get("/api/v1/runs/r/output/text")
    assert text.headers["content-type"].startswith("text/plain") and "attachment" in text.headers["content-disposition"]
    assert text.text.splitlines()[-2:] == ["line <99>", "50 %"]
    check_error(client.get("/api/v1/runs/r/output?limit=-1"), 400)
    check_error(client.get("/api/v1/runs/none/output"), 404)


def test_output_follows_no_links(server, client, logs, tmp_path):
    write(logs / "r", [START, END])
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "000000000000.log").write_text("1.0 stdout secret\n")
    (logs / "r" / "output").symlink_to(secret)
    assert client.get("/api/v1/runs/r/output").json()["rows"] == []
    (logs / "r" / "output").unlink()
    (logs / "r" / "output").mkdir()
    (logs / "r" / "output" / "000000000000.log").symlink_to(secret / "000000000000.log")
    (logs / "r" / "output" / "partial.log").symlink_to(secret / "000000000000.log")
    answer = client.get("/api/v1/runs/r/output").json()
    assert (answer["rows"], answer["partial"]) == ([], [])
    assert "secret" not in client.get("/api/v1/runs/r/output/text").text
