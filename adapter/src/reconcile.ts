export function reconcileSoon(_settings: unknown): void {}
export function hostApi(environment: NodeJS.ProcessEnv): string { return environment.PAPERCLIP_RUNTIME_API_URL ?? ""; }
