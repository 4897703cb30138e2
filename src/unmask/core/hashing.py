"""Random numbers without a generator: integer keys are hashed, so a number is a pure function of its keys.

Whatever is drawn (masks, folds, orders, samples) survives resume, worker count and packing, and can be drawn again. The
last key is a `Salt`, which keeps the numbers of one use apart from those of another with the same other keys.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Salt(IntEnum):
    """What a hashed number is for. A saved model's masks, folds and draws depend on these numbers: they never change.

    New members take a number of their own. The aliases at the end share one with another member since version 0.1;
    giving them numbers of their own would change the results of every seed. Their other keys (how many there are, or
    which kind of data the seed belongs to) keep them apart.
    """

    # What is hidden, and what stands there instead
    SLOT_ORDER = 1
    UNIT_ORDER = 2
    SPAN_START = 3
    REPLACEMENT = 4
    NOISE = 5
    MIXTURE = 6
    UNIT_FITS = 7
    HIDDEN_DENSITY = 14
    HIDDEN_SHARE = 11
    HIDDEN_COUNT = 12
    SEEN_SHARE = 13
    SEEN_START = 15
    WEIGHTED_ORDER = 16
    # The order of training
    PLAN_EXAMPLES = 21
    PLAN_ROWS = 22
    REPLAY = 23
    # Pictures: hidden patches
    RECTANGLE_AREA = 30
    RECTANGLE_SHAPE = 31
    RECTANGLE_TOP = 32
    RECTANGLE_LEFT = 33
    RECTANGLE_ORDER = 40
    HIDDEN_PATCHES = 41
    # Tables: fitting
    FOLD = 42
    BATCH_ORDER = 43
    CHECKED_ROWS = 44
    CALIBRATION_ROWS = 45
    MOST_ROWS = 46
    MARGIN_ROWS = 47
    COLUMN_ORDER = 48
    CELL_MEMBER = 49
    # Pictures: augmentation
    CROP_AREA = 50
    CROP_SHAPE = 51
    CROP_LEFT = 52
    CROP_TOP = 53
    MIRROR = 54
    TURN = 56
    WINDOW_TOP = 57
    WINDOW_LEFT = 58
    # Pictures: several views of one
    GAIN = 204
    SHIFT = 205
    DIRECTIONS = 206
    # Pictures: crops of whole ones
    SCENE_CROP = 230
    SCENE_BEND = 231
    SCENE_TINT = 232
    # Held-out examples
    HELD_OUT_PICTURE = 60
    HELD_OUT_PICTURE_GROUP = 61
    HELD_OUT_POINT = 62
    # Judged: some of many
    JUDGED_PAIRS = 207
    JUDGED_DOCUMENT = 209
    # Synthetic tables
    SYNTHETIC_CELL = 63
    SYNTHETIC_CELL_WITHIN = 64
    SYNTHETIC_TIME = 66
    SYNTHETIC_CAUSE = 67
    SYNTHETIC_HOLES = 68
    SYNTHETIC_ACCEPTED = 70
    REDRAWN_CELL = 69
    # Tables: calibration
    COPIED_HOLES = 71
    # Tables in several files
    DRAWN_ROW = 210
    SEED_OF_FILE = 211
    # Patient events
    SUBJECT = 73
    BIRTH = 79
    QUESTIONS = 201
    QUESTION_END = 202
    QUESTION_UNIFORM = 203
    # Synthetic tables with several causes: this number for the third uniform of a row, the next one for the fourth, ...
    SYNTHETIC_LATER_CAUSES = 82

    # Aliases
    CELL_HOLES_COPIED = RECTANGLE_SHAPE
    CELL_DONOR = RECTANGLE_TOP
    LINEAR_PART_ROWS = HIDDEN_PATCHES
    SAVED_HOLES = MOST_ROWS
    CELL_NUMBER = CROP_AREA
    CELL_WITHIN = CROP_SHAPE
    CELL_BROAD = CROP_LEFT
    HELD_OUT_SUBJECT = HELD_OUT_PICTURE_GROUP
    SYNTHETIC_MEMBER = HELD_OUT_PICTURE_GROUP
    SYNTHETIC_COLUMN_ORDER = HELD_OUT_POINT
    SKETCH_HALF = SYNTHETIC_CAUSE
    PREDICTION_TIME_SHOWN = SYNTHETIC_CAUSE
    PREDICTION_TIME_GAP = SYNTHETIC_HOLES


def hash_keys(*keys: int | np.ndarray) -> np.ndarray:
    """Hash integer keys, broadcast together, to uniform 64-bit numbers (splitmix64 finaliser, Steele et al. 2014).

    >>> bool(hash_keys(1, 2) == hash_keys(1, 2)), bool(hash_keys(1, 2) == hash_keys(2, 1))
    (True, False)
    """
    state = np.asarray(np.uint64(0))
    with np.errstate(over="ignore"):
        for key in keys:
            state = state ^ np.asarray(key).astype(np.int64).view(np.uint64)
            state = state + _GOLDEN
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state = state ^ (state >> np.uint64(31))
    return np.asarray(state)


def uniform(*keys: int | np.ndarray) -> np.ndarray:
    """Hash integer keys to floats in [0, 1)."""
    return (hash_keys(*keys) >> np.uint64(11)).astype(np.float64) * 2.0**-53
