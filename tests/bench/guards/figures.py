"""Figures of a guard on texts with labels."""


def precision_recall(guard, cases):
    """Return how many texts with and without a label there are, and the precision and recall by whole texts."""
    found = [(label, bool(guard.find(text, 0))) for text, label in cases]
    hits = sum(label and said for label, said in found)
    said = sum(one for _, one in found)
    positives = sum(label for label, _ in found)
    return {
        "positive": positives,
        "negative": len(found) - positives,
        "precision": round(hits / max(1, said), 3),
        "recall": round(hits / max(1, positives), 3),
        "false_positives": said - hits,
    }
