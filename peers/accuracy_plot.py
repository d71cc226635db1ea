#!/usr/bin/env python3
"""Draws the test accuracies of `peers/training accuracy` over the epochs: each seed a thin line, their means thick.

    peers/training plot accuracy/accuracy.json docs/accuracy.svg
"""

import argparse
import json
import statistics

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.hashsalt": "paceline", "svg.fonttype": "none", "font.family": "sans-serif"})
from matplotlib import pyplot  # noqa: E402

COLOURS = {"paceline": "#1b6ac9", "pytorch": "#d2691e"}
NAMES = {"paceline": "Paceline", "pytorch": "PyTorch"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", help="accuracy.json")
    parser.add_argument("picture", help="an SVG to write")
    options = parser.parse_args()
    with open(options.results) as file:
        seeds = json.load(file)["seeds"].values()
    figure, axes = pyplot.subplots(figsize=(6.4, 3.6))
    for side, colour in COLOURS.items():
        curves = [[(point["epoch"], 100 * point["accuracy"]) for point in seed[side]] for seed in seeds]
        for curve in curves:
            axes.plot(*zip(*curve), color=colour, alpha=0.25, linewidth=0.8)
        epochs = [point[0] for point in curves[0]]
        means = [statistics.mean(curve[i][1] for curve in curves) for i in range(len(epochs))]
        axes.plot(epochs, means, color=colour, linewidth=2.2, label=f"{NAMES[side]}, mean of {len(curves)} seeds")
    axes.set_xlabel("epochs")
    axes.set_ylabel("test accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(options.picture, metadata={"Date": None})


if __name__ == "__main__":
    main()
