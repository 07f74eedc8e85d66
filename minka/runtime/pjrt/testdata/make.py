"""Writes the .pb beside every .hlo with XLA's own parser (needs jaxlib 0.8.1), so that the tests do not depend on ours."""
import pathlib

from jaxlib import _jax

for text in sorted(pathlib.Path(__file__).parent.glob("*.hlo")):
    module = _jax.hlo_module_from_text(text.read_text())
    text.with_suffix(".pb").write_bytes(module.as_serialized_hlo_module_proto())
