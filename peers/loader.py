"""Loads JPEG files at 224x224 with PyTorch's DataLoader and with Paceline's loader in turns, on one core, and prints the ratio.

    pip install torch torchvision
    cargo build --release -p paceline-train --example loader_speed
    python3 peers/loader.py --core 0

Pictures are made: noise with the spectrum of photographs, 500x375, quality 90, about 100 KB each, as ImageNet's are. Both sides
decode, take a random resized crop, flip and normalise. PyTorch loads in its own process or with one worker, whichever is faster in
the round. A rate is images over processor time, which does not depend on what else the machine does; rates by the clock
come beside it.
"""

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import tempfile
import time

LOADER = pathlib.Path(__file__).parent.parent / "target/release/examples/loader_speed"
BATCH = 64


def make(folder, pictures):
    import numpy
    from PIL import Image

    random = numpy.random.default_rng(1)
    rows, columns = numpy.meshgrid(numpy.fft.fftfreq(375), numpy.fft.rfftfreq(500), indexing="ij")
    frequency = numpy.hypot(rows, columns)
    frequency[0, 0] = 1

    def noise(slope):
        phases = numpy.exp(2j * numpy.pi * random.random(frequency.shape))
        plane = numpy.fft.irfft2(phases * frequency**slope, s=(375, 500))
        return plane / plane.std()

    for number in range(pictures):
        light = noise(-1.1)
        planes = [127 + 50 * (light + 0.5 * noise(-1.6)) for _ in range(3)]
        pixels = numpy.clip(numpy.stack(planes, -1), 0, 255).astype(numpy.uint8)
        path = pathlib.Path(folder, f"class-{number % 4}", f"{number}.jpg")
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path, quality=90)


def processor_time():
    users = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in users)


def torch_rates(folder, batches, workers):
    import torch
    from torchvision import datasets, transforms

    torch.set_num_threads(1)
    steps = transforms.Compose([
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ])
    data = datasets.ImageFolder(folder, steps)
    order = torch.utils.data.RandomSampler(data, num_samples=batches * BATCH, replacement=True)
    loader = torch.utils.data.DataLoader(data, BATCH, sampler=order, num_workers=workers)
    begin, spent = time.perf_counter(), processor_time()
    images = sum(len(labels) for _, labels in loader)
    return images / (processor_time() - spent), images / (time.perf_counter() - begin)


def paceline_rates(loader, folder, batches):
    said = subprocess.run([loader, f"images:{folder}", str(batches)], check=True, capture_output=True, text=True)
    result = json.loads(said.stdout)
    return 1e6 / result["cpu_us"], result["images_per_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=512)
    parser.add_argument("--batches", type=int, default=16, help="of 64, a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--core", type=int, default=min(os.sched_getaffinity(0)))
    parser.add_argument("--loader", default=LOADER, help="the example loader_speed, where it is not in target/release")
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.core})
    with tempfile.TemporaryDirectory() as folder:
        make(folder, options.pictures)
        torch_rates(folder, 1, 0)  # Imports and first calls are not what is compared.
        rounds = []
        for _ in range(options.rounds):
            theirs = max(torch_rates(folder, options.batches, workers) for workers in (0, 1))
            rounds.append((theirs, paceline_rates(options.loader, folder, options.batches)))
    for number, name in enumerate(["processor time", "the clock"]):
        pairs = [(theirs[number], ours[number]) for theirs, ours in rounds]
        theirs, ours = (statistics.median(rates) for rates in zip(*pairs))
        ratios = [ours / theirs for theirs, ours in pairs]
        print(f"by {name}: PyTorch {theirs:.0f} images/s, Paceline {ours:.0f} images/s, "
              f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
