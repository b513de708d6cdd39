"""All staged deaths, and the halves of those that were written down before any of them had been run."""

from __future__ import annotations

from deaths import DEATHS
from deaths_of_a_blind_writer import FOUND_BESIDE as FOUND_BESIDE_BLIND
from deaths_of_a_blind_writer import SEEN
from deaths_of_a_blind_writer_unseen import UNSEEN
from deaths_of_custom_loops import CUSTOM_LOOP_DEATHS
from deaths_of_large_tensors import LARGE_TENSOR_DEATHS
from deaths_of_paper_code import FOUND_BESIDE as FOUND_BESIDE_PAPERS
from deaths_of_paper_code import PAPER_DEATHS
from deaths_of_research_code import RESEARCH_DEATHS
from deaths_of_strangers import FOUND_BESIDE, STRANGERS_DEATHS
from deaths_of_usual_training import FOUND_BESIDE_USUAL, USUAL
from deaths_of_usual_training_unseen import USUAL_UNSEEN
from held_out import HELD_OUT

WITH_NOTES = [
    *CUSTOM_LOOP_DEATHS, *RESEARCH_DEATHS, *LARGE_TENSOR_DEATHS, *STRANGERS_DEATHS, *FOUND_BESIDE, *PAPER_DEATHS,
    *FOUND_BESIDE_PAPERS, *SEEN, *FOUND_BESIDE_BLIND, *UNSEEN, *USUAL, *FOUND_BESIDE_USUAL,
    *USUAL_UNSEEN,
]  # fmt: skip
"""Each with its cause and a remedy, written down before any had been run."""
EVERY_DEATH = [*DEATHS, *HELD_OUT, *WITH_NOTES]
