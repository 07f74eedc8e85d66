"""Models of the packages transformers and diffusers, of their own code, from configurations of few and narrow layers."""

import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp

from program import OPTIMIZERS, Program, cross_entropy, images, key, tokens, training

warnings.filterwarnings("ignore", category=FutureWarning)

import diffusers  # noqa: E402
import transformers  # noqa: E402

transformers.logging.set_verbosity_error()


def of_transformers(config: str, model: str, optimizer: str, batch: Callable[[], dict], **options) -> Callable[[], Program]:
    """batch: the model's keyword arguments by name, and "labels"."""

    def make():
        built = getattr(transformers, model)(getattr(transformers, config)(**options), seed=0)
        variables = built.params
        statistics = variables.get("batch_stats") if "params" in variables else None
        params = variables["params"] if statistics else variables

        def loss_of(params, rest, batch):
            now, next_key = jax.random.split(rest["key"])
            inputs = {name: value for name, value in batch.items() if name != "labels"}
            if statistics:
                out, changed = built(**inputs, params={"params": params, "batch_stats": rest["statistics"]}, train=True)
                return cross_entropy(out.logits, batch["labels"]), {"key": next_key, "statistics": changed["batch_stats"]}
            out = built(**inputs, params=params, dropout_rng=now, train=True)
            return cross_entropy(out.logits, batch["labels"]), rest | {"key": next_key}

        return training(loss_of, params, {"key": jax.random.PRNGKey(7), "statistics": statistics}, OPTIMIZERS[optimizer](), batch())

    return make


def text(decoder: bool = False) -> dict:
    inputs = {"input_ids": tokens(96, 16, 16), "labels": tokens(96, 16, 16)}
    return inputs | ({"decoder_input_ids": tokens(96, 16, 16)} if decoder else {})


def pictures() -> dict:
    return {"pixel_values": images(16, 3, 16, 16), "labels": tokens(10, 16)}


def stable_diffusion_unet() -> Program:
    model = diffusers.FlaxUNet2DConditionModel(
        sample_size=8, in_channels=4, out_channels=4, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), block_out_channels=(32, 64), layers_per_block=1, attention_head_dim=8,
        cross_attention_dim=32)
    batch = {"latents": images(16, 4, 8, 8), "text": images(16, 6, 32)}

    def loss_of(params, rest, batch):
        now, next_key = jax.random.split(rest)
        noise, times = jax.random.normal(now, batch["latents"].shape), jax.random.randint(now, (16,), 0, 1000)
        out = model.apply({"params": params}, batch["latents"] + noise, times, batch["text"], train=True,
                          rngs={"dropout": now}).sample
        return jnp.mean((out - noise) ** 2), next_key

    return training(loss_of, model.init_weights(key()), jax.random.PRNGKey(3), OPTIMIZERS["adamw"](), batch)


MODELS = {
    "transformers GPT-2": of_transformers("GPT2Config", "FlaxGPT2LMHeadModel", "clipped adamw", text, n_layer=2, n_embd=32, n_head=2,
                                          vocab_size=96, n_positions=16),
    "transformers BERT": of_transformers("BertConfig", "FlaxBertForMaskedLM", "adamw", text, num_hidden_layers=2, hidden_size=32,
                                         num_attention_heads=2, intermediate_size=64, vocab_size=96, max_position_embeddings=16),
    "transformers T5": of_transformers("T5Config", "FlaxT5ForConditionalGeneration", "adafactor", lambda: text(decoder=True), d_model=32,
                                       d_kv=16, d_ff=64, num_layers=2, num_heads=2, vocab_size=96),
    # Its rotary embedding has no more numbers for a position than there are positions, and takes two of each dimension of a head.
    "transformers Llama": of_transformers("LlamaConfig", "FlaxLlamaForCausalLM", "lion", text, hidden_size=32, intermediate_size=64,
                                          num_hidden_layers=2, num_attention_heads=2, vocab_size=96, max_position_embeddings=32),
    "transformers ViT": of_transformers("ViTConfig", "FlaxViTForImageClassification", "adam", pictures, hidden_size=32,
                                        num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=16, patch_size=4,
                                        num_labels=10),
    "transformers ResNet": of_transformers("ResNetConfig", "FlaxResNetForImageClassification", "sgd", pictures, embedding_size=16,
                                           hidden_sizes=[16, 32], depths=[1, 1], num_labels=10, layer_type="basic"),
    "diffusers UNet": stable_diffusion_unet,
}
