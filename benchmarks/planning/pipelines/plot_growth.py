"""growth.svg from results.json: how long planning takes over layers, devices and instructions.

    build/venv-jax/bin/python benchmarks/planning/pipelines/plot_growth.py
"""

import json
import pathlib

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "growth"  # the same file for the same rows

from matplotlib import pyplot  # noqa: E402  (after the backend is chosen)

FOLDER = pathlib.Path(__file__).parent


def plot(axes, rows, field, title):
    """Wall seconds over a field, a line for each model."""
    for model in dict.fromkeys(row["model"] for row in rows):
        points = sorted((row[field], row["wall_seconds"]) for row in rows if row["model"] == model)
        axes.plot(*zip(*points), marker="o", markersize=4, label=model)
    axes.set(xscale="log", yscale="log", xlabel=title)
    axes.grid(True, which="both", linewidth=0.3)


def main():
    rows = json.loads((FOLDER / "results.json").read_text())["rows"]
    figure, (layers, devices, instructions) = pyplot.subplots(1, 3, figsize=(12, 4), sharey=True)
    plot(layers, [row for row in rows if row["part"] == "layers"], "model_layers", "layers")
    plot(devices, [row for row in rows if row["part"] == "devices"], "devices", "devices")
    for axes in (layers, devices):
        axes.legend()
    for chosen, label in ((False, "micro-batches given"), (True, "micro-batches chosen")):
        points = [
            (row["instructions"], row["wall_seconds"])
            for row in rows
            if row["part"] == "published" and row["chosen"] == chosen
        ]
        if points:
            instructions.scatter(*zip(*points), s=16, label=label)
    instructions.set(xscale="log", yscale="log", xlabel="instructions of published cases")
    instructions.grid(True, which="both", linewidth=0.3)
    instructions.legend()
    layers.set_ylabel("wall seconds from module to plan")
    figure.tight_layout()
    figure.savefig(FOLDER / "growth.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
