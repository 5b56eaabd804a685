"""Published numbers of DySpec, Sequoia and SpecInfer, as data, and the grid that repeats them at demo scale.

Command (demo scale, the shipped pair, any machine; records, a table and two plots under docs/results/):

    python -m specdec.main --mode=trees --gin_file=gin/runs/tree_tables.gin

Hardware of the paper: one A100-40GB, 32 cores; Llama 2 7B and 13B with JackFram's 68M draft, Llama 2 70B with the 7B
as draft and CPU offload; 128-token prompts, 128 new tokens, 1,000 items a set, single runs; the draft always at
temperature 0.6. Expected here: the order of the methods at T = 0, not these speeds.

Values are as printed, read through one transcription (the OpenReview version of the paper, with appendices; its
headline factors agree with the abstract of arXiv v1). The captions say latency; the cells are speed-ups.
"""

import dataclasses

SOURCE = "Xiong et al., DySpec, arXiv 2410.11744; World Wide Web 28(3), 2025"
SEQUOIA_SOURCE = "Chen et al., Sequoia, NeurIPS 2024, arXiv 2402.12374"

SIZES = (8, 16, 32, 64)  # The budgets of the demo grid.
TEMPERATURES = (0.0, 0.6, 1.0)


@dataclasses.dataclass(frozen=True)
class TreeRow:
  """One cell of the tables at budget 64: speed over plain decoding, and accepted tokens a step, by method."""

  data: str
  temperature: float
  target: str
  dyspec: tuple[float, float]
  sequoia: tuple[float, float]
  specinfer: tuple[float, float]


@dataclasses.dataclass(frozen=True)
class LargeRow:
  """Budget 768, Llama 2 7B drafting for 70B: seconds a token, and accepted tokens a step, by method."""

  data: str
  temperature: float
  dyspec: tuple[float, float]
  sequoia: tuple[float, float]
  specinfer: tuple[float, float]  # copied by the authors from the Sequoia paper
  baseline: float


@dataclasses.dataclass(frozen=True)
class SequoiaRow:
  """Sequoia's Table 1: one A100, Llama 2 7B with the 68M draft; tree = (size, depth)."""

  data: str
  temperature: float
  speed: float
  tokens_per_step: float
  tree: tuple[int, int]
  specinfer_speed: float  # 5 chains of 8


def _rows(data, temperature, cells):
  return tuple(TreeRow(data, temperature, target, *three) for target, three in zip(("7B", "13B", "70B"), cells))


BUDGET_64 = (
    *_rows("c4", 0.0, (
        ((3.15, 5.25), (2.64, 4.99), (1.79, 3.32)),
        ((3.13, 4.98), (2.66, 4.35), (1.97, 3.14)),
        ((9.42, 9.10), (6.29, 6.08), (4.89, 4.67)),
    )),
    *_rows("c4", 0.6, (
        ((2.20, 3.71), (1.85, 3.45), (1.80, 3.44)),
        ((2.26, 3.62), (1.88, 3.15), (1.85, 3.15)),
        ((6.77, 6.21), (5.66, 5.72), (5.76, 5.75)),
    )),
    *_rows("openwebtext", 0.0, (
        ((2.28, 3.79), (2.19, 3.81), (1.47, 2.54)),
        ((2.45, 3.59), (2.33, 3.44), (1.67, 2.44)),
        ((7.07, 7.23), (6.02, 6.41), (5.07, 4.88)),
    )),
    *_rows("openwebtext", 0.6, (
        ((2.40, 3.07), (2.18, 3.04), (2.09, 2.97)),
        ((1.96, 3.02), (1.78, 2.80), (1.71, 2.75)),
        ((6.05, 6.77), (5.63, 6.07), (5.42, 5.46)),
    )),
    *_rows("cnn_dailymail", 0.0, (
        ((2.42, 3.97), (2.40, 4.04), (1.53, 2.58)),
        ((2.56, 3.82), (2.45, 3.67), (1.69, 2.52)),
        ((6.50, 6.93), (5.85, 6.42), (4.80, 4.83)),
    )),
    *_rows("cnn_dailymail", 0.6, (
        ((2.09, 3.18), (1.99, 3.22), (1.80, 3.06)),
        ((2.03, 3.11), (1.84, 2.91), (1.78, 2.84)),
        ((5.94, 6.95), (5.71, 6.07), (5.70, 5.75)),
    )),
    *_rows("gsm8k", 0.0, (
        ((3.93, 6.86), (2.79, 4.92), (2.01, 3.47)),
        ((3.17, 5.29), (2.21, 3.92), (1.74, 2.98)),
        ((10.56, 12.39), (7.31, 7.62), (5.22, 5.34)),
    )),
    *_rows("gsm8k", 0.6, (
        ((2.44, 4.31), (2.20, 3.55), (1.65, 3.03)),
        ((2.49, 4.17), (2.10, 3.39), (1.51, 2.72)),
        ((7.57, 8.14), (6.62, 6.89), (5.75, 5.89)),
    )),
    *_rows("mt_bench", 0.0, (
        ((2.59, 4.02), (2.35, 3.55), (1.68, 2.70)),
        ((2.19, 3.72), (2.19, 3.46), (2.15, 2.86)),
        ((9.95, 11.25), (6.96, 7.46), (4.75, 4.85)),
    )),
    *_rows("mt_bench", 0.6, (
        ((2.15, 3.62), (2.11, 3.18), (1.50, 2.71)),
        ((2.25, 3.62), (1.93, 3.11), (1.40, 2.84)),
        ((8.47, 10.11), (6.96, 7.46), (5.52, 5.67)),
    )),
)  # fmt: skip

# The text claims that DySpec always accepts more than Sequoia; in these cells of its own table it does not.
SEQUOIA_ACCEPTS_MORE = (("openwebtext", 0.0, "7B"), ("cnn_dailymail", 0.0, "7B"), ("cnn_dailymail", 0.6, "7B"))

BUDGET_768 = (
    LargeRow("c4", 0.0, (0.42412, 16.04), (0.62841, 9.40), (0.86, 8.66), 5.59650),
    LargeRow("c4", 0.6, (0.88494, 7.14), (0.66293, 8.96), (1.09, 6.93), 5.34781),
    LargeRow("openwebtext", 0.0, (0.54885, 11.79), (0.62979, 9.81), (1.02, 7.36), 5.52462),
    LargeRow("openwebtext", 0.6, (0.81002, 7.66), (0.65147, 9.12), (1.21, 6.18), 5.30340),
    LargeRow("cnn_dailymail", 0.0, (0.54739, 11.46), (0.60206, 9.54), (0.95, 7.87), 5.31049),
    LargeRow("cnn_dailymail", 0.6, (0.87648, 7.02), (0.65835, 8.80), (1.02, 6.24), 5.29280),
)

SEQUOIA_TABLE_1 = (
    SequoiaRow("c4", 0.0, 4.04, 5.08, (128, 10), 3.45),
    SequoiaRow("openwebtext", 0.0, 3.22, 3.86, (128, 7), 2.79),
    SequoiaRow("cnn_dailymail", 0.0, 3.41, 4.05, (128, 7), 2.95),
    SequoiaRow("mt_bench", 0.0, 4.03, 4.98, (128, 10), 3.84),
    SequoiaRow("c4", 0.6, 3.18, 3.92, (128, 7), 2.47),
    SequoiaRow("openwebtext", 0.6, 2.71, 3.33, (128, 6), 2.10),
    SequoiaRow("cnn_dailymail", 0.6, 2.83, 3.45, (128, 6), 2.11),
    SequoiaRow("mt_bench", 0.6, 3.18, 3.96, (128, 7), 2.45),
)
