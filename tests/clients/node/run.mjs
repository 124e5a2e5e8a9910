// node run.mjs FILE TEST URL: runs one test.
const [, , file, test, url] = process.argv;
const tests = await import(`./${file}.mjs`);
if (!tests[test]) throw new Error(`${file}.mjs has no test ${test}`);
await tests[test](url);
