"""No mode writes over a file that it reads."""

import pytest

from specdec.modes import benchmark
from specdec.modes import evaluate
from specdec.modes import measure_alpha
from specdec.modes import trace
from tests.modes import tiny as lib

MODES = {
    "trace": trace.trace,
    "measure_alpha": measure_alpha.measure_alpha,
    "benchmark": benchmark.benchmark,
    "evaluate": lambda target, draft, source, output: evaluate.evaluate(target, source, source, draft, output),
}


@pytest.mark.parametrize("mode", sorted(MODES))
@pytest.mark.parametrize("linked", [False, True])
def test_the_input_is_not_written_over(tiny, monkeypatch, mode, linked):
  monkeypatch.setattr("specdec.modes.decode.Decoder.__call__", lambda *_: pytest.fail("refuse before any work"))
  source = tiny.folder / f"kept by {mode}.txt"
  source.write_text(lib.SENTENCES[0], encoding="utf-8")
  output = source.with_suffix(".link") if linked else source
  if linked:
    output.symlink_to(source)
  with pytest.raises(ValueError, match="output: expected another file than the input"):
    MODES[mode](tiny.target, tiny.draft, str(source), str(output))
  assert source.read_text(encoding="utf-8") == lib.SENTENCES[0]


def test_the_references_are_not_written_over(tiny):
  source, references = (tiny.write(name, lib.SENTENCES[0]) for name in ("in.txt", "right.txt"))
  with pytest.raises(ValueError, match="output: expected another file than the input"):
    evaluate.evaluate(tiny.target, source, references, tiny.draft, references)
