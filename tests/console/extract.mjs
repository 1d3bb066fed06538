// Unpacks the browser of the package into TMPDIR, with its fonts, and prints the path of the program.
import chromium from "@sparticuz/chromium";

console.log(await chromium.executablePath());
