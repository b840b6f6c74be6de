"""Trains the classifier of slow_training.py: rows are read once, and normalised together."""

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


def read_all(rows):
    """All rows: normalised features, and labels."""
    numbers, labels = zip(*map(parse, rows), strict=True)
    features = torch.tensor(numbers)
    mean, std = features.mean(dim=1, keepdim=True), features.std(dim=1, keepdim=True)
    return (features - mean) / std, torch.tensor(labels)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    all_features, all_labels = read_all(read_rows(1024))
    model = nn.Sequential(nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(3):
        total = 0.0
        for first in range(0, len(all_labels), BATCH):
            features = all_features[first : first + BATCH]
            features = features + 0.05 * torch.randn_like(features)
            labels = all_labels[first : first + BATCH]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(features), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: loss {total * BATCH / len(all_labels):.4f}")


if __name__ == "__main__":
    main()
