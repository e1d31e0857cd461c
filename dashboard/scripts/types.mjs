// Writes src/api.ts from the OpenAPI document of a running server: `npm run types -- http://127.0.0.1:7878`.

import { writeFileSync } from "node:fs";

const HEAD = "// Written by `npm run types` from the server's OpenAPI document. A test compares the two.\n";

/** The interface of the server as TypeScript. */
export function types(document) {
  const schemas = Object.entries(document.components.schemas).sort(([a], [b]) => a.localeCompare(b));
  return HEAD + schemas.map(([name, schema]) => declaration(name, schema)).join("");
}

function declaration(name, schema) {
  const about = schema.description ? `\n/** ${oneLine(schema.description)} */` : "";
  return `${about}\nexport type ${name} = ${type(schema, "")};\n`;
}

function type(schema, indent) {
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  const either = schema.oneOf ?? schema.anyOf;
  if (either) return either.map((one) => type(one, indent)).join(" | ");
  if (schema.allOf) return schema.allOf.map((one) => type(one, indent)).join(" & ");
  if (Array.isArray(schema.type)) {
    return schema.type.map((one) => type({ ...schema, type: one }, indent)).join(" | ");
  }
  switch (schema.type) {
    case "array":
      return `Array<${type(schema.items ?? {}, indent)}>`;
    case "integer":
    case "number":
      return "number";
    case "object":
      return schema.properties
        ? object(schema, indent)
        : `Record<string, ${type(schema.additionalProperties ?? {}, indent)}>`;
    case "string":
    case "boolean":
    case "null":
      return schema.type;
    default:
      return "unknown";
  }
}

function object(schema, indent) {
  const required = new Set(schema.required ?? []);
  const fields = Object.entries(schema.properties).map(([name, field]) => {
    const about = field.description ? `${indent}  /** ${oneLine(field.description)} */\n` : "";
    return `${about}${indent}  ${name}${required.has(name) ? "" : "?"}: ${type(field, `${indent}  `)};\n`;
  });
  return `{\n${fields.join("")}${indent}}`;
}

const oneLine = (text) => text.replaceAll(/\s+/g, " ").replaceAll("*/", "* /").trim();

if (process.argv[1] === new URL(import.meta.url).pathname) {
  const url = process.argv[2];
  if (!url) {
    console.error("error: no address: accepted is that of a running server, such as http://127.0.0.1:7878");
    process.exit(2);
  }
  const document = await (await fetch(`${url}/openapi.json`)).json();
  writeFileSync(new URL("../src/api.ts", import.meta.url), types(document));
}
