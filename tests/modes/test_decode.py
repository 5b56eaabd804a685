"""`--mode=decode`: the records, what they do not depend on, and how it fails."""

import json
import os
import shutil

import jax
import numpy as np
import pytest

from specdec import models
from specdec.checkpoints import from_orbax
from specdec.data import vocabularies
from specdec.modes import decode
from tests.modes import tiny as lib

FIELDS = {
    "inputs", "prediction", "output_ids", "log_prob", "steps", "drafted", "accepted", "committed", "reached",
    "acceptance_histogram", "acceptance_per_position", "alpha", "stop", "seconds",
}  # fmt: skip
SHAPE = dict(gamma=lib.GAMMA, input_lengths=lib.LENGTHS, max_new_tokens=lib.NEW_TOKENS)
TEMPERATURES = (0.0, 1.0)


def run(tiny, output, draft=True, **arguments):
  """Decodes; the records of the file, which must be those that are returned."""
  arguments = SHAPE | dict(batch_size=4, compare=0) | arguments
  arguments.setdefault("input", str(tiny.folder / "sentences.txt"))
  returned = decode.decode(tiny.target, tiny.draft if draft else None, output=str(output), **arguments)
  written = [json.loads(line) for line in output.read_text(encoding="utf-8").split("\n")[:-1]]
  assert written == returned
  return written


@pytest.fixture(scope="module")
def records(tiny, tmp_path_factory):
  """Of each temperature, batch size 4."""
  folder = tmp_path_factory.mktemp("records") / "new"
  found = {t: run(tiny, folder / f"{t}.jsonl", temperature=t) for t in TEMPERATURES}
  assert sorted(os.listdir(folder)) == ["0.0.jsonl", "1.0.jsonl"], "nothing else stays"
  return found


def without_seconds(records):
  return [{name: value for name, value in record.items() if name != "seconds"} for record in records]


def tokens(records):
  return [record["output_ids"] for record in records]


# --- The records --------------------------------------------------------------


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_counts_agree_on_every_record(records, temperature):
  found = records[temperature]
  assert [r["inputs"] for r in found] == list(lib.SENTENCES)
  for r in found:
    assert set(r) == FIELDS
    histogram = r["acceptance_histogram"]
    assert len(histogram) == lib.GAMMA + 1
    assert r["committed"] == len(r["output_ids"])
    assert sum(histogram) == r["steps"]
    assert sum(k * h for k, h in enumerate(histogram)) == r["accepted"]
    assert r["drafted"] == lib.GAMMA * r["steps"]
    assert r["accepted"] + r["steps"] - r["committed"] in (0, 1)
    assert r["accepted"] <= r["reached"] <= r["drafted"]
    assert 0 <= r["alpha"] <= 1
    assert len(r["acceptance_per_position"]) == lib.GAMMA
    assert all(a is None or 0 <= a <= 1 for a in r["acceptance_per_position"])
    assert 0 < r["seconds"] < 60
  assert sum(r["accepted"] for r in found) > 0 and len({r["committed"] for r in found}) > 1


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_ends_and_texts(tiny, records, temperature):
  stops = set()
  for r in records[temperature]:
    stops.add(r["stop"])
    assert r["stop"] == ("EOS" if r["output_ids"][-1] == vocabularies.EOS_ID else "LENGTH")
    assert vocabularies.EOS_ID not in r["output_ids"][:-1]
    assert r["stop"] == "EOS" or len(r["output_ids"]) == lib.NEW_TOKENS
    assert r["prediction"] == tiny.target.vocabulary.decode(r["output_ids"])
  assert stops == {"EOS", "LENGTH"}


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_log_prob_is_that_of_the_flax_module(tiny, records, temperature):
  pair = lib.fakes_pair()
  for r in records[temperature]:
    ids = [*tiny.target.vocabulary.encode(r["inputs"]), vocabularies.EOS_ID]
    laws = lib.log_laws(pair.module, pair.variables, ids, r["output_ids"])
    expected = sum(law[token] for law, token in zip(laws, r["output_ids"], strict=True))
    assert r["log_prob"] == pytest.approx(expected, abs=2e-4)


def test_acceptance_per_position_on_a_made_up_row():
  """Two steps: one accepted both drafts, one the first of two; a third reached the first place only, and refused it."""
  statistics = decode.loop.Statistics(
      steps=[3], drafted=[6], accepted=[3], committed=[6], histogram=np.array([[1, 1, 1]]), visited=np.array([[3, 2]]),
      acceptance=np.array([[2.0, 0.5]]), log_prob=[-1.5], drawn_log_prob=[0.0],
  )  # fmt: skip
  output = decode.loop.Output(np.array([[5, 6, 7, 8, 9, 1, 0]]), np.array([6]), np.array([1]), statistics, None)
  request = decode.prompts.Request("text", (5, 1), (), 1)
  vocabulary = type("Vocabulary", (), {"decode": lambda self, ids: str(ids)})()
  record = decode.row_record(request, 0, output, vocabulary, 0.25)
  assert record["acceptance_per_position"] == [0.666667, 0.5]
  assert record["alpha"] == 0.5 and record["reached"] == 5
  assert record["output_ids"] == [5, 6, 7, 8, 9, 1] and record["stop"] == "EOS"


# --- What the tokens do not depend on ------------------------------------------


def test_greedy_speculation_equals_the_plain_decoder(tiny, records, tmp_path):
  plain = run(tiny, tmp_path / "plain.jsonl", draft=False)
  assert tokens(plain) == tokens(records[0.0])
  for r in plain:
    assert set(r) == FIELDS
    assert r["steps"] == r["committed"] and r["drafted"] == r["accepted"] == 0
    assert r["acceptance_histogram"] == [r["steps"]] and r["alpha"] is None
  assert sum(r["steps"] for r in records[0.0]) < sum(r["steps"] for r in plain)


def test_batch_size_and_padding_do_not_change_tokens(tiny, records, tmp_path):
  alone = run(tiny, tmp_path / "alone.jsonl", batch_size=1, temperature=1.0, input_lengths=(24, 48))
  assert tokens(alone) == tokens(records[1.0])
  for name in ("steps", "accepted", "acceptance_histogram", "stop", "reached"):
    assert [r[name] for r in alone] == [r[name] for r in records[1.0]]


def test_seed_decides_the_draws(tiny, records, tmp_path):
  same = run(tiny, tmp_path / "same.jsonl", temperature=1.0)
  other = run(tiny, tmp_path / "other.jsonl", temperature=1.0, seed=1)
  greedy = run(tiny, tmp_path / "greedy.jsonl", temperature=0.0, seed=1)
  assert without_seconds(same) == without_seconds(records[1.0])
  assert tokens(other) != tokens(records[1.0])
  assert tokens(greedy) == tokens(records[0.0])


def test_settings_reach_the_decoder(tiny, tmp_path):
  shortest = run(tiny, tmp_path / "top_k.jsonl", temperature=5.0, top_k=1)
  assert tokens(shortest) == tokens(run(tiny, tmp_path / "greedy.jsonl"))


def test_requests_with_ids_and_prefixes(tiny, tmp_path):
  lines = [
      {"inputs": "Ein Hund läuft.", "prefix": "Der Hund"},
      {"input_ids": [5, 6, 7], "prefix_ids": [9]},
      {"inputs": "Öl"},
  ]
  path = tiny.write("mixed.jsonl", "\n".join(json.dumps(line) for line in lines))
  found = run(tiny, tmp_path / "out.jsonl", input=path)
  encode, decode_ids = tiny.target.vocabulary.encode, tiny.target.vocabulary.decode
  assert [r["inputs"] for r in found] == ["Ein Hund läuft.", decode_ids([5, 6, 7]), "Öl"]
  for r, prefix in zip(found, (encode("Der Hund"), [9], [])):
    assert r["prediction"] == decode_ids([*prefix, *r["output_ids"]])
  # The target's own greedy choice after the prefix, by the Flax module.
  pair = lib.fakes_pair()
  ids = [*encode("Ein Hund läuft."), vocabularies.EOS_ID]
  text = [*encode("Der Hund"), *found[0]["output_ids"]]
  laws = lib.log_laws(pair.module, pair.variables, ids, text)
  assert text[len(encode("Der Hund")) :] == laws.argmax(-1)[len(encode("Der Hund")) :].tolist()


def task_files(tiny):
  """The ten sentences as line-aligned files of the split 'test'."""
  tiny.write("test.de", "\n".join(lib.SENTENCES) + "\n")
  return {"test": "test.de"}


def test_a_seqio_task_is_decoded_as_its_text_is(tiny, records, tmp_path):
  """By value, and from a gin file; `--input` wins over it."""
  tasks = pytest.importorskip("specdec.data.tasks")
  files, folder = task_files(tiny), str(tiny.folder)
  task = tasks.parallel_text("decode_me", tiny.target.vocabulary, inputs=files, targets=files, folder=folder)
  found = run(tiny, tmp_path / "value.jsonl", input=task)
  assert without_seconds(found) == without_seconds(records[0.0])
  with pytest.raises(ValueError, match=r"task decode_me: expected a split among \['test'\], found 'gone'"):
    run(tiny, tmp_path / "gone.jsonl", input=task, split="gone")
  other = vocabularies.SentencePieceVocabulary(tiny.target.vocabulary.path, 3)
  task = tasks.parallel_text("other_pieces", other, inputs=files, targets=files, folder=folder)
  with pytest.raises(ValueError, match="task other_pieces: expected the vocabulary of the target"):
    run(tiny, tmp_path / "other.jsonl", input=task)
  assert os.listdir(tmp_path) == ["value.jsonl"]
  later = tmp_path / "task.gin"
  later.write_text(
      "from __gin__ import dynamic_registration\nfrom specdec import models\nfrom specdec.data import tasks\n"
      "from specdec.modes import decode\n"
      "tasks.parallel_text:\n  name = 'by_gin'\n  vocabulary = @target/models.vocabulary()\n"
      f"  inputs = {files!r}\n  targets = {files!r}\n  folder = {folder!r}\n"
      "decode.decode.input = @tasks.parallel_text()\ndecode.decode.batch_size = 4\ndecode.decode.compare = 0\n"
  )
  command = ["--mode=decode", f"--gin_file={tiny.gin('decode')}", f"--gin_file={later}"]
  assert lib.call_main(*command, f"--output={tmp_path}/gin.jsonl") is None
  found = [json.loads(line) for line in (tmp_path / "gin.jsonl").read_text(encoding="utf-8").splitlines()]
  assert without_seconds(found) == without_seconds(records[0.0])
  assert "gone.txt" in lib.call_main(*command, "--input=gone.txt", f"--output={tmp_path}/no.jsonl")


# --- Where it goes --------------------------------------------------------------


def test_stdout_holds_records_only(tiny, records, capsys):
  source = str(tiny.folder / "sentences.txt")
  decode.decode(tiny.target, tiny.draft, input=source, output="-", batch_size=4, compare=0, **SHAPE)
  lines = capsys.readouterr().out.splitlines()
  assert tokens([json.loads(line) for line in lines]) == tokens(records[0.0])


def test_summary_on_stderr(tiny, capsys, tmp_path):
  run(tiny, tmp_path / "out.jsonl", compare=4)
  summary = capsys.readouterr().err
  for part in ("tokens per second: ", "equal outputs: 4 of 4", "alpha 0.", f"drafted (gamma {lib.GAMMA})", "theory: "):
    assert part in summary
  run(tiny, tmp_path / "again.jsonl", compare=0)
  assert "tokens per second" not in capsys.readouterr().err


def test_through_main_with_gin(tiny, records, tmp_path):
  output = tmp_path / "out.jsonl"
  bindings = [f"--gin.decode.decode.{binding}" for binding in ("batch_size=4", "compare=0", "temperature=1.0")]
  assert lib.call_main("--mode=decode", f"--gin_file={tiny.gin('decode')}", *bindings, f"--output={output}") is None
  found = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
  assert without_seconds(found) == without_seconds(records[1.0])


def test_long_inputs_are_cut_or_refused(tiny, records, tmp_path):
  path = tiny.write("long.txt", "\n".join([*lib.SENTENCES[:3], "Ein Hund läuft. " * 20]))
  found = run(tiny, tmp_path / "cut.jsonl", input=path)
  assert tokens(found)[:3] == tokens(records[0.0])[:3] and len(found) == 4
  with pytest.raises(ValueError, match=r"input: line 4 has \d+ tokens and the encoder takes 48"):
    run(tiny, tmp_path / "refused.jsonl", input=path, on_long="error")
  assert not (tmp_path / "refused.jsonl").exists()


# --- Failures: one line on stderr, nothing half-written -------------------------


@pytest.fixture(scope="module")
def bad_files(tiny):
  """Files that do not fit the pair, in its folder."""
  folder = tiny.folder
  other = ("Fischers Fritz fischt frische Fische.", "Zehn zahme Ziegen zogen Zucker.", *lib.SENTENCES)
  vocabularies.train_sentencepiece(str(folder / "other.model"), other, lib.PIECES)
  vocabularies.train_sentencepiece(str(folder / "large.model"), lib.SENTENCES, lib.PIECES + 6)
  shutil.copytree(folder / "target", folder / "cut")
  for path in (folder / "cut").rglob("d/*"):
    os.truncate(path, path.stat().st_size // 2)
  variables = jax.tree.map(np.array, lib.fakes_pair().variables)
  variables["decoder"]["decoder_norm"]["scale"][:] = np.nan
  from_orbax.save(folder / "nan", variables)
  (folder / "folder").mkdir()
  tiny.write("empty.txt", "")
  tiny.write("gap.txt", "Ein Hund\n\nEin Buch\n")
  tiny.write("file", "")
  return folder


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Orbax closes its event loop early.
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output={folder}/file/out.jsonl"], "output: cannot write .*out.jsonl"),
        (["--output={folder}/folder"], "output: expected a file name, found the folder"),
        (["--gin.decode.decode.gamma=0"], "gamma: expected at least 1"),
        (["--gin.decode.decode.max_new_tokens=0"], "max_new_tokens: expected at least 1, found 0"),
        (["--gin.decode.decode.batch_size=0"], "batch_size: expected at least 1, found 0"),
        (["--gin.decode.decode.temperature=-1.0"], "temperature: "),
        (["--gin.target/models.load_model.checkpoint='{folder}/gone'"], "gone: expected a checkpoint folder"),
        (["--gin.target/models.load_model.checkpoint='{folder}/cut'"], "expected a whole Orbax checkpoint"),
        (["--gin.draft/models.load_model.checkpoint='{folder}/target'"], r"parameters do not fit the model"),
        (["--gin.draft/models.vocabulary.path='{folder}/other.model'"], r"draft's piece \d+ to be .* '.*', found '"),
        (["--gin.draft/models.vocabulary.path='{folder}/large.model'"], "70 pieces, and the model only 64 logits"),
        (["--gin.target/models.vocabulary.path='{folder}/sentences.txt'"], "is not a SentencePiece model"),
        (["--input={folder}/gone.txt"], "input: expected a file at .*gone.txt, found nothing there"),
        (["--input={folder}/empty.txt"], "input: expected at least one line"),
        (["--input={folder}/file", "--output={folder}/file"], "output: expected another file than the input"),
        (["--input={folder}/gap.txt"], "input: line 2 of .*gap.txt: expected a sentence, found an empty line"),
    ],
)
def test_failures_end_with_one_message(tiny, bad_files, tmp_path, arguments, message):
  output = tmp_path / "out.jsonl"
  arguments = [f"--output={output}", *(a.format(folder=bad_files) for a in arguments)]
  found = lib.call_main("--mode=decode", f"--gin_file={tiny.gin('decode')}", *arguments)
  assert found.startswith("specdec: ")
  assert "fit the model" in found or "\n" not in found
  with pytest.raises(ValueError, match=message):
    raise ValueError(found)
  assert not list(tmp_path.iterdir()), "nothing is left"


def test_weights_that_are_not_finite(tiny, bad_files, tmp_path, capsys):
  output = tmp_path / "out.jsonl"
  checkpoint = f"--gin.target/models.load_model.checkpoint='{bad_files}/nan'"
  settings = [f"--gin_file={tiny.gin('decode')}", checkpoint, "--gin.decode.decode.batch_size=4"]
  found = lib.call_main("--mode=decode", *settings, f"--output={output}")
  assert found == "specdec: model: its output is not finite in 10 of 10 requests; check its weights."
  error = capsys.readouterr().err
  assert all(f"line {n}: stopped, the model's output is not finite" in error for n in range(1, 11))
  records = [json.loads(line) for line in output.read_text().splitlines()]
  assert os.listdir(tmp_path) == ["out.jsonl"]
  for r in records:
    assert r["stop"] == "NOT_FINITE" and r["output_ids"] == [] and r["committed"] == 0
    assert r["accepted"] + r["steps"] - r["committed"] == 1
    assert np.isfinite(r["log_prob"]) and r["alpha"] is None


def test_a_draft_that_is_not_finite_changes_no_token(tiny, records, tmp_path):
  params = jax.tree.map(lambda x: x * np.nan, tiny.draft.params)
  broken = models.Model(tiny.draft.model, params, tiny.draft.vocabulary)
  found = run(tiny._replace(draft=broken), tmp_path / "out.jsonl")
  assert tokens(found) == tokens(records[0.0])
