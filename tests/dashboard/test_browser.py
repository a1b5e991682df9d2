"""The dashboard in headless Chromium: every page, every action, by hand and by keyboard, looked at by axe-core."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest

from reliq import Queue, WorkerPool
from reliq.dashboard import Dashboard, actions

from ..http.support import serving
from .conftest import run_all
from .hostile import HOSTILE, UNSAFE

selenium = pytest.importorskip("selenium", reason="needs selenium, of the extra `test`")
from selenium import webdriver  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

pytestmark = pytest.mark.slow
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}


def _missing(reason: str) -> None:
    if os.environ.get("RELIQ_REQUIRE_BROWSER") == "1":
        pytest.fail(f"RELIQ_REQUIRE_BROWSER=1, but {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One browser for all tests of this file."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    chromedriver = shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        _missing("there is no Chromium with its chromedriver on PATH (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium or ""
    profile = tmp_path_factory.mktemp("profile")
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     "--disable-background-networking", f"--user-data-dir={profile}"):  # fmt: skip
        options.add_argument(argument)
    options.page_load_strategy = "eager"
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options, webdriver.ChromeService(chromedriver))
    try:
        yield found
    finally:
        found.quit()


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core; skipped with the reason where npm is not there or cannot fetch it."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm on PATH, so axe-core cannot be had")
    place = tmp_path_factory.mktemp("axe")
    done = subprocess.run(
        [npm, "pack", "axe-core@4", "--silent"], cwd=place, capture_output=True, text=True, timeout=60
    )
    archives = list(place.glob("axe-core-*.tgz"))
    if done.returncode or not archives:
        pytest.skip(f"npm could not fetch axe-core: {done.stderr.strip()[:200]}")
    with tarfile.open(archives[0]) as archive:
        source = archive.extractfile("package/axe.min.js")
        assert source is not None
        return source.read().decode()


class Screen:
    """The browser at one dashboard."""

    def __init__(self, driver: Any, base: str) -> None:
        self.driver = driver
        self.base = base
        self.look()

    def look(self, *, size: str = "desktop", is_dark: bool = False, is_still: bool = True) -> None:
        width, height = SIZES[size]
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"},
        )
        features = {
            "prefers-color-scheme": "dark" if is_dark else "light",
            "prefers-reduced-motion": "reduce" if is_still else "no-preference",
        }
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": k, "value": v} for k, v in features.items()]}
        )

    def open(self, path: str) -> None:
        self.driver.get(self.base + path)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def button(self, text: str) -> Any:
        [found] = [each for each in self.driver.find_elements(By.TAG_NAME, "button") if each.text == text]
        return found

    def press(self, text: str) -> None:
        self.button(text).click()

    @property
    def text(self) -> str:
        return str(self.driver.find_element(By.TAG_NAME, "main").text)

    def until(self, condition: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + 20
        while True:
            try:
                if condition():
                    return
            except selenium.common.exceptions.WebDriverException:  # the page is being replaced
                pass
            assert time.monotonic() < deadline, f"{what}; there is: {self.text}"
            threading.Event().wait(0.02)

    def shows(self, text: str) -> None:
        self.until(lambda: text in self.text, f"{text!r} is not shown")

    def complaints(self) -> list[str]:
        """What the browser's console was told, violations of the Content-Security-Policy among it."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture
def queue() -> Iterator[Queue]:
    with Queue("emails", f"memory://{secrets.token_hex(8)}", max_attempts=1) as queue:
        yield queue


@pytest.fixture
def screen(driver: Any, queue: Queue) -> Iterator[Screen]:
    app = Dashboard(queue.storage, allow_actions=True, show_payloads=True)
    driver.get_log("browser")  # what another test left there
    with serving(app, is_for_browsers=True) as (host, port):
        yield Screen(driver, f"http://{host}:{port}")
        driver.get("about:blank")
        driver.delete_all_cookies()
    app.close()


def _fill(queue: Queue, dead: int = 5) -> None:
    queue.enqueue_many([(f"bad-{n}", {"fail": "the bank is busy"}) for n in range(dead)])
    queue.enqueue("good", {"n": 1})
    run_all(queue)
    queue.enqueue_many([(f"waits-{n}", {"n": n}) for n in range(3)])
    queue.enqueue("later", 1, delay=1000, priority=4, group="acme")


PATHS = (
    "/",
    "/dead",
    "/job?queue=emails&id=bad-1",
    "/jobs?queue=emails",
    "/jobs?queue=emails&q=bad",
    "/workers",
    "/job?queue=emails&id=good",
    "/job?queue=emails&id=later",
    "/job?queue=emails&id=nobody",
    "/nothing",
)


def test_every_page_fits_its_screen(queue: Queue, screen: Screen) -> None:
    _fill(queue)
    for size, (width, _) in SIZES.items():
        screen.look(size=size)
        for path in PATHS:
            screen.open(path)
            found = screen.run("return document.documentElement.scrollWidth")
            assert found <= width, f"{path} is {found} px wide on a {size}"
    assert [each for each in screen.complaints() if "404" not in each] == []


def test_axe_has_no_serious_findings(queue: Queue, screen: Screen, axe: str) -> None:
    _fill(queue)
    for size, is_dark, paths in (("desktop", False, PATHS), ("phone", True, PATHS[:3])):
        screen.look(size=size, is_dark=is_dark)
        for path in paths:
            screen.open(path)
            screen.run(axe)
            found = screen.driver.execute_async_script(
                "axe.run().then(arguments[0], (error) => arguments[0]({broken: `${error}`}))"
            )
            assert "broken" not in found, found
            assert len(found["passes"]) > 10
            serious = [
                (each["id"], each["help"], [node["html"] for node in each["nodes"]][:3])
                for each in found["violations"]
                if each["impact"] in ("serious", "critical")
            ]
            assert not serious, f"{path} on a {size}: {serious}"


def test_every_action_is_done_and_told(queue: Queue, screen: Screen) -> None:
    _fill(queue)
    screen.open("/jobs?queue=emails")
    screen.press("Pause")
    screen.shows("The queue is paused")
    assert queue.is_paused
    screen.press("Resume")
    screen.shows("hands out jobs again")
    assert not queue.is_paused

    screen.open("/job?queue=emails&id=waits-1")
    screen.press("Cancel job")
    screen.shows("Cancel this job?")
    screen.press("Yes, cancel")
    screen.shows("The job was cancelled.")
    assert queue.get_status("waits-1") is None

    screen.open("/job?queue=emails&id=bad-0")
    screen.press("Retry")
    screen.shows("1 dead letter was put back")
    assert queue.counts()["failed"] == 4

    screen.open("/dead")
    screen.driver.find_element(By.CSS_SELECTOR, "input[value=bad-1]").click()
    screen.press("Retry chosen")
    screen.shows("1 dead letter was put back")
    screen.driver.find_element(By.CSS_SELECTOR, "input[value=bad-2]").click()
    screen.press("Discard chosen")
    screen.shows("Discard 1 dead letter?")
    screen.driver.find_element(By.LINK_TEXT, "No, go back").click()
    screen.shows("bad-2")
    assert queue.counts()["failed"] == 3
    screen.driver.find_element(By.ID, "all").click()
    screen.press("Discard chosen")
    screen.shows("Discard 3 dead letters?")
    screen.press("Yes, discard")
    screen.shows("3 dead letters were discarded.")
    assert queue.counts()["failed"] == 0
    assert screen.complaints() == []


def test_10_000_jobs_are_paged_through_and_all_are_discarded_by_themselves(
    queue: Queue, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "STEP_SECONDS", 0.0)  # a thousand a step: the script goes on
    from reliq import NewJob

    queue.enqueue_many([NewJob(f"dead-{n:05}", {"n": n}, after=("nobody",)) for n in range(10_000)])
    assert queue.counts()["failed"] == 10_000
    screen.open("/jobs?queue=emails&state=failed")
    seen: set[str] = set()
    for number in range(1, 3):
        seen |= {each.text for each in screen.driver.find_elements(By.CSS_SELECTOR, "tbody a.id")}
        assert len(seen) == number * 50
        screen.driver.find_element(By.LINK_TEXT, "Next page").click()
        screen.until(lambda: "First page" in screen.text, "no second page")
    screen.open("/dead")
    screen.press("Discard all")
    screen.shows("Discard 10,000 dead letters?")
    screen.press("Yes, discard")
    screen.shows("10,000 dead letters were discarded.")
    assert queue.counts()["failed"] == 0


def test_100_hostile_strings_inject_nothing(queue: Queue, screen: Screen) -> None:
    for text in HOSTILE:
        queue.enqueue(text, {"fail": text, text: text}, headers={"note": text})
    run_all(queue)
    injected = "return [window.owned ?? null, document.scripts.length, document.title, location.origin]"

    def check(what: str) -> None:
        owned, scripts, title, origin = screen.run(injected)
        assert (owned, scripts, origin) == (None, 1, screen.base), what
        assert title.endswith("· reliq")

    for path in ("/jobs?queue=emails", "/dead"):
        screen.open(path)
        check(path)
        screen.driver.find_element(By.LINK_TEXT, "Next page").click()
        check(path)
    for text in HOSTILE:
        screen.open(f"/job?queue=emails&id={quote(text, safe='')}")
        owned, scripts, heading, shown = screen.run(
            "return [window.owned ?? null, document.scripts.length, document.querySelector('h1').textContent,"
            " document.body.textContent]"
        )
        assert (owned, scripts) == (None, 1), text
        assert heading.endswith(" failed")
        assert not UNSAFE.search(shown), text
    screen.open(f"/jobs?queue=emails&q={quote(HOSTILE[0])}")
    check("search")
    assert screen.complaints() == []


def test_everything_can_be_reached_with_the_keyboard(queue: Queue, screen: Screen) -> None:
    _fill(queue, dead=2)
    screen.open("/dead")
    page = screen.driver.find_element(By.TAG_NAME, "body")
    page.send_keys(Keys.TAB)
    assert screen.run("return document.activeElement.textContent") == "Skip to the content"
    reached: list[str] = []
    for _ in range(40):
        active = screen.driver.switch_to.active_element
        if active.tag_name == "body":  # past the end
            break
        name = active.get_attribute("aria-label") or active.text or active.get_attribute("id")
        reached.append(name)
        outline = screen.run("return getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", f"the focus on {name!r} cannot be seen"
        active.send_keys(Keys.TAB)
    for name in (
        "Queues",
        "Workers",
        "Live",
        "q",
        "Search",
        "all",
        "Choose bad-0",
        "Retry chosen",
        "Discard all",
        "bad-1",
    ):
        assert name in reached, f"{name} is not among {reached}"
    box = screen.driver.find_element(By.CSS_SELECTOR, "input[value=bad-1]")
    box.send_keys(Keys.SPACE)
    screen.button("Retry chosen").send_keys(Keys.ENTER)
    screen.shows("1 dead letter was put back")


def test_pages_stay_fresh_while_live_and_stand_still_otherwise(queue: Queue, screen: Screen) -> None:
    queue.enqueue("first", 1)
    screen.open("/jobs?queue=emails")
    live = screen.driver.find_element(By.ID, "live")
    assert live.get_attribute("aria-pressed") == "false", "less motion was asked for"
    screen.run("document.querySelector('a.id').focus()")
    screen.run("window.same = true")
    screen.run("sessionStorage.setItem('reliq-live', 'on'); setLive(true)")
    queue.enqueue("second", 1)
    screen.shows("second")
    assert screen.run("return window.same"), "it was not loaded anew"
    assert screen.driver.switch_to.active_element.text == "first", "the focus stays"
    screen.driver.find_element(By.ID, "live").send_keys(Keys.SPACE)
    assert screen.driver.find_element(By.ID, "live").get_attribute("aria-pressed") == "false"
    screen.run("sessionStorage.clear()")
    screen.look(is_still=False)
    screen.open("/jobs?queue=emails")
    assert screen.driver.find_element(By.ID, "live").get_attribute("aria-pressed") == "true"


def test_workers_are_seen_at_work(queue: Queue, screen: Screen) -> None:
    started, release = threading.Event(), threading.Event()

    @queue.handler
    def wait(_: Any) -> None:
        started.set()
        release.wait(20)

    queue.enqueue("long", 1)
    pool = WorkerPool(queue, threads=2, worker_id="gpu-7").start()
    try:
        assert started.wait(20)
        screen.open("/workers")
        assert "gpu-7" in screen.text
        screen.driver.find_element(By.LINK_TEXT, "long").click()
        screen.shows("processing")
    finally:
        release.set()
        pool.stop()
