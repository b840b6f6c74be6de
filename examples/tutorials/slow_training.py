"""Trains a classifier on rows of text, as a first version often does."""

import random

import torch
from torch import nn

FEATURES, CLASSES, BATCH = 256, 10, 256


def read_rows(count):
    """Lines of a CSV file: numbers, the last one the class."""
    rows = []
    for _ in range(count):
        numbers = [f"{random.gauss(0, 1):.6f}" for _ in range(FEATURES)]
        rows.append(",".join([*numbers, str(random.randrange(CLASSES))]))
    return rows


def parse(row):
    numbers = []
    for text in row.split(","):
        numbers.append(round(float(text), 6))
    return numbers[:-1], int(numbers[-1])


def load(rows):
    """A batch: normalised features with noise, and labels."""
    parsed = [parse(row) for row in rows]
    features = []
    for numbers, _ in parsed:
        sample = torch.tensor(numbers)
        sample = (sample - sample.mean()) / sample.std()
        features.append(sample + 0.05 * torch.randn(FEATURES))
    return torch.stack(features), torch.tensor([label for _, label in parsed])


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    rows = read_rows(1024)
    model = nn.Sequential(nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(3):
        total = 0.0
        for first in range(0, len(rows), BATCH):
            features, labels = load(rows[first : first + BATCH])
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(features), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: loss {total * BATCH / len(rows):.4f}")


if __name__ == "__main__":
    main()
