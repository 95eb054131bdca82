/** Validates an agent's configuration without a wake. */
import { validated } from "./context.ts";
import { tidied } from "./plain.ts";
import { InvalidRequest, type Problem } from "./problems.ts";

/** Every wrong field of a configuration, with its remedy; the same ones for which a wake would be refused. */
export function configProblems(config: unknown): Problem[] {
  const placeholder = { runId: "check", agent: { id: "check", companyId: "check" } };
  try {
    validated(tidied({ ...placeholder, config }));
    return [];
  } catch (error) {
    if (error instanceof InvalidRequest) return error.problems;
    throw error;
  }
}
