// Imported before the example in TypeScript: workers that sleep for long hang for good, once some have slept.
import { syncBuiltinESMExports } from "node:module";
import timers from "node:timers/promises";

const [sleep, forever] = [timers.setTimeout, 2 ** 31 - 1];
let longSleeps = 0;
timers.setTimeout = (milliseconds) => sleep(milliseconds >= 50 && ++longSleeps > 10 ? forever : milliseconds);
syncBuiltinESMExports();
