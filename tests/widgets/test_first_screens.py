"""The first screen of a notebook: its folded first cell alone makes a picture that is whole, moves and lights up."""

from __future__ import annotations

from typing import Any

import browser
import pytest

pytestmark = pytest.mark.browser

RUN_FIRST_CODE_CELL = """async () => {
    const notebook = window.jupyterapp.shell.currentWidget.content;
    notebook.activeCellIndex = notebook.widgets.findIndex((cell) => cell.model.type === 'code');
    notebook.deselectAll();
    await window.jupyterapp.commands.execute('notebook:run-cell');
}"""


def forget(root: Any) -> None:
    root.locator('[data-name="forget_to_copy"]').click()


def step_back(root: Any) -> None:
    root.locator('[data-name="step"]').press("Home")


def type_more(root: Any) -> None:
    root.locator('[data-name="second"]').press_sequentially(" Or not.")


def last_moment(root: Any) -> None:
    root.locator('[data-name="moment"]').press("End")


def first_station(root: Any) -> None:
    root.locator('[data-link="s-arrive"]').click()


# How each picture is moved, and what stands in it before and after.
MOVES: dict[str, tuple[Any, str, str]] = {
    "03_copy_on_write": (forget, "taken from the other story", "took a copy"),
    "04_sampling_and_beams": (step_back, "Step 14:", "Step 0:"),
    "05_prefix_caching": (type_more, "kind", "Or"),
    "07_the_paged_kernel": (step_back, "Step 3 of 13:", "Step 1 of 13:"),
    "08_qwen": (step_back, "Step 9:", "Step 1:"),
    "09_continuous_batching": (step_back, "After 40 steps", "After 0 steps"),
    "10_serving_qwen": (first_station, "One token is drawn", "It owns no block yet"),
    "11_two_devices": (step_back, "Pool of rank 1", "Pool of rank 1"),
    "12_speculative_decoding": (last_moment, "Check 9 of 16", "Check 16 of 16"),
}


ALONE = {"07_the_paged_kernel", "10_serving_qwen", "12_speculative_decoding"}  # the last part lights up by itself


@pytest.mark.parametrize("name", MOVES)
def test_the_first_cell_alone_makes_the_picture(lab: browser.Lab, name: str) -> None:
    move, before, after = MOVES[name]
    with lab.notebook(f"notebooks/{name}.ipynb", width=1440, height=900) as page:
        page.evaluate(RUN_FIRST_CODE_CELL)
        root = page.locator(".px-root").first
        root.get_by_text(before).first.wait_for(timeout=120_000)
        assert browser.cell_errors(page) == []
        box = root.bounding_box()
        assert 0 < box["y"] < box["y"] + box["height"] < 900, f"not on one screen: {box}"
        assert page.locator(".jp-CodeCell").first.locator(".jp-InputArea-editor").count() == 0, "its code is not folded"
        part = root.locator("[data-link]").last
        part.hover()
        lit = root.locator(".pl-lit[data-link]")
        assert lit.count() > (name not in ALONE)
        assert root.locator(".px-say").inner_text() == part.get_attribute("data-say")
        move(root)
        root.get_by_text(after).first.wait_for(timeout=15_000)
        assert page.problems == []


def test_13_a_server_streams_to_three_and_its_live_page_is_linked(lab: browser.Lab) -> None:
    with lab.notebook("notebooks/13_serve_it.ipynb", width=1440, height=900) as page:
        page.evaluate(RUN_FIRST_CODE_CELL)
        root = page.locator(".ps-root").first
        root.get_by_text("aborted").wait_for(timeout=120_000)
        box = root.bounding_box()
        assert 0 < box["y"] < box["y"] + box["height"] < 900, f"not on one screen: {box}"
        address = page.locator(".jp-OutputArea a").first.get_attribute("href")
        live = page.context.new_page()
        live.goto(address)
        live.locator(".ps-root").wait_for()
        live.close()
        assert browser.cell_errors(page) == []
        assert page.problems == []
