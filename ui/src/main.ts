import { mount } from "svelte";
import "./style.css";
import App from "./App.svelte";
import { logInFromAddress } from "./login";

const target = document.getElementById("app");
if (target === null) throw new Error("index.html has no #app");
await logInFromAddress();
target.replaceChildren();
mount(App, { target });
