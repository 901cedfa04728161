//! Tests of the page in a browser, if one is installed: at the widths of a phone and of a desktop, in both colour schemes.

use super::page;
use crate::testing;
use std::path::Path;
use std::process::{Command, Stdio};

/// Executable names of Chromium.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];
/// Widths of a phone and of a desktop, in pixels.
const WIDTHS: [u32; 2] = [390, 1280];

/// Records the page as a reader without scripts sees it. Runs before the page's script.
const BEFORE: &str = r#"<script>
const shape = (root) => JSON.stringify([...root.querySelectorAll("*")].map((e) => [e.tagName, e.getAttribute("class"), (e.getAttribute("style") || "").replace(/\.0%/g, "%"), e.getAttribute("title"), e.getAttribute("data-key"), e.children.length ? "" : e.textContent]));
const parts = () => [document.querySelector(".graph .flame"), document.querySelector(".all tbody")];
const seen = [...parts(), document.querySelector("article .waterfall")].map(shape);
</script>
"#;

/// Compares that record with the page that the script made, and operates all controls; the report is in `found`.
const AFTER: &str = r#"<script>
const drawn = [...parts(), document.querySelector(".chosen .waterfall")].map(shape);
const found = { same: drawn.map((made, at) => made === seen[at]), links: document.querySelectorAll(".full:not([hidden])").length };
for (const button of document.querySelectorAll(".all thead button")) { button.click(); button.click(); }
const search = document.querySelector("input[type=search]");
search.value = "load_cr3";
search.dispatchEvent(new Event("input", { bubbles: true }));
found.searched = [...document.querySelectorAll(".all tbody tr:not([hidden])")].every((row) => row.textContent.includes("load_cr3"));
const graph = document.querySelector(".flame");
graph.children[1].click();
for (const key of ["ArrowDown", "ArrowRight", "ArrowLeft", "ArrowUp", "Enter", "Escape"]) graph.dispatchEvent(new KeyboardEvent("keydown", { key }));
for (const select of document.querySelectorAll("select")) for (const option of select.options) { select.value = option.value; select.dispatchEvent(new Event("change")); }
for (const one of document.querySelectorAll("details")) one.open = true;
document.querySelector(".full a").click();
</script>
"#;

/// The same for the page of a diff, which has no cells to choose from.
const AFTER_DIFF: &str = r#"<script>
for (const button of document.querySelectorAll(".all thead button")) { button.click(); button.click(); }
const search = document.querySelector("input[type=search]");
search.value = "asm_exc_page_fault";
search.dispatchEvent(new Event("input", { bubbles: true }));
const found = { searched: document.querySelectorAll(".all tbody tr:not([hidden])").length };
</script>
"#;

/// Adds what all pages report, and sends the report to the surrounding frame.
const REPORT: &str = r#"<script>
found.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
found.width = innerWidth;
found.dark = matchMedia("(prefers-color-scheme: dark)").matches;
parent.postMessage(JSON.stringify(found), "*");
</script>
"#;

/// Returns a document that shows the page in a frame. A browser window has a minimum width; a frame does not.
fn frame(page: &Path, width: u32) -> String {
    format!(
        "<!doctype html><title>frame</title><body style=\"margin:0\"><iframe src=\"file://{}\" width=\"{width}\" height=\"900\" \
         style=\"border:0\"></iframe><pre></pre><script>onmessage = (event) => {{ document.querySelector('pre').textContent = \
         event.data }}</script>",
        page.display()
    )
}

/// Returns the first installed browser.
pub fn installed() -> Option<&'static str> {
    let runs = |name: &&str| {
        let quiet = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        quiet.is_ok_and(|status| status.success())
    };
    let found = BROWSERS.into_iter().find(runs);
    if found.is_none() {
        eprintln!("skipped: none of {} is installed", BROWSERS.join(", "));
    }
    found
}

/// Opens a page with a test script before and after its own, at both widths and in both colour schemes. `found` returns the expected report, to which
/// the latter script adds.
pub fn opened(browser: &str, name: &str, page: &str, [before, after]: [&str; 2], found: impl Fn(u32, bool) -> String) {
    let directory = std::env::temp_dir().join(format!("tollgate-page-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let (head, script) = page.rsplit_once("<script>").unwrap();
    let page = format!("{head}{before}<script>{script}").replace("</body>", &format!("{after}{REPORT}</body>"));
    std::fs::write(directory.join("page.html"), page).unwrap();
    for width in WIDTHS {
        std::fs::write(directory.join("frame.html"), frame(&directory.join("page.html"), width)).unwrap();
        for dark in [true, false] {
            let output = Command::new(browser)
                .args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--enable-logging=stderr"])
                .args(["--dump-dom", "--virtual-time-budget=10000"])
                .arg(format!("--blink-settings=preferredColorScheme={}", u8::from(!dark)))
                .arg(format!("--window-size={},900", width.max(800)))
                .arg(format!("--user-data-dir={}", directory.join("profile").display()))
                .arg(directory.join("frame.html"))
                .stdin(Stdio::null())
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            let errors: Vec<&str> = said.lines().filter(|line| line.contains("CONSOLE")).collect();
            assert!(errors.is_empty(), "{width}: {errors:?}");
            let shown = String::from_utf8_lossy(&output.stdout).into_owned();
            let told = shown.split("<pre>").nth(1).and_then(|rest| rest.split("</pre>").next()).unwrap_or_default();
            assert_eq!(told, found(width, dark), "{shown}{said}");
        }
    }
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn the_page_fits_its_window_and_its_script_makes_no_error() {
    let Some(browser) = installed() else { return };
    let (experiment, result) = testing::results(4);
    let page = page::html(&[experiment], &[result], None).unwrap();
    opened(browser, "lab", &page, [BEFORE, AFTER], |width, dark| {
        format!(
            "{{\"same\":[true,true,true],\"links\":1,\"searched\":true,\"wide\":0,\"width\":{width},\"dark\":{dark}}}"
        )
    });
}

#[test]
fn the_page_of_a_diff_fits_too() {
    let Some(browser) = installed() else { return };
    let page = super::diff_page(&crate::diff::tests::sample()).unwrap();
    opened(browser, "diff", &page, ["", AFTER_DIFF], |width, dark| {
        format!("{{\"searched\":1,\"wide\":0,\"width\":{width},\"dark\":{dark}}}")
    });
    let page = super::several_page(&crate::diff::several::tests::sample()).unwrap();
    opened(browser, "several", &page, ["", AFTER_DIFF], |width, dark| {
        format!("{{\"searched\":1,\"wide\":0,\"width\":{width},\"dark\":{dark}}}")
    });
}
