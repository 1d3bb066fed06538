"""Figures of a guard on texts with labels."""


def precision_recall(guard, cases):
    """Return how many texts with and without a label there are, and the precision and recall by whole texts."""
    return figures_of([(label, bool(guard.find(text, 0))) for text, label in cases])


def figures_of(found):
    """Return the same for pairs of label and finding."""
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
